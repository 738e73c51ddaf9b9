"""What goes along with training and changes nothing in it: logs, drift readings, samples, progress."""

from driftvq.training.callbacks.drift import DriftCallback
from driftvq.training.callbacks.jsonl import JsonlLogger
from driftvq.training.callbacks.progress import LiveProgress
from driftvq.training.callbacks.samples import SampleImages

__all__ = ["DriftCallback", "JsonlLogger", "LiveProgress", "SampleImages"]
