"""How far an encoder moves and how its codebook follows: measures any model, and needs nothing of its training."""

from driftvq.drift_meter.meter import DriftMeter
from driftvq.drift_meter.reading import DriftReading

__all__ = ["DriftMeter", "DriftReading"]
