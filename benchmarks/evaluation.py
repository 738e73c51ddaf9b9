"""What an evaluation costs beside the bare Inception forward, in one run.

python benchmarks/evaluation.py                   # 32 images, the cost of 1,000 computed from them
python benchmarks/evaluation.py --images 1000     # measured, several minutes on two cores
python benchmarks/evaluation.py --clock cpu       # on a machine that others use, too

The bare forward is the TorchScript network on images that are already 299×299 and normalised. The evaluation has the
features of the originals in its cache, measures the default metrics at 64×64 and includes the small model's forward.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from driftvq.data import ImageBatch, eval_batches, open_source
from driftvq.metrics import DEFAULT_METRICS, evaluate
from driftvq.metrics.inception import Inception, inception_input, load_script
from driftvq.models import VQVAE, ModelConfig
from driftvq.models.running import model_pairs
from measure import machine, table

BATCH, SIZE = 16, 64
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TARGET = 1000


def photographs(count: int) -> list[Tensor]:
    """Embedded photographs, again and again with one pixel changed, so that no two are the same."""
    source = open_source(None, "train", size=SIZE)
    with eval_batches(source, size=SIZE, batch_size=1, limit=count) as batches:
        found = [batch.images for batch in batches]
    images = torch.cat([found[number % len(found)] for number in range(count)])
    images[:, 0, 0, 0] = torch.arange(count) % 256
    images[:, 1, 0, 0] = torch.arange(count) // 256
    return list(images.split(BATCH))


def seconds(run: Callable[[], object], clock: str) -> float:
    start = CLOCKS[clock]()
    run()
    return CLOCKS[clock]() - start


class Timed:
    """Seconds of one evaluation: until the first batch, between batches, and after the last one."""

    def __init__(self, batches: list[Tensor], model: VQVAE, cache: Path, metrics: list[str], clock: str) -> None:
        self.now = CLOCKS[clock]
        self.marks = [self.now()]
        evaluate(
            model_pairs(model, self._given(batches)),
            codebook_size=model.config.codebook_size,
            metrics=metrics,
            cache=cache,
            progress=lambda _: self.marks.append(self.now()),
        )
        self.end = self.now()

    def _given(self, batches: list[Tensor]) -> Iterator[ImageBatch]:
        self.marks = [self.marks[0], self.now()]
        for images in batches:
            yield ImageBatch(images, [""] * len(images), [])

    @property
    def total(self) -> float:
        return self.end - self.marks[0]

    @property
    def per_run(self) -> float:
        """What does not depend on the number of images: loading networks, the matrix root."""
        return self.total - self.on_images

    @property
    def on_images(self) -> float:
        return self.marks[-1] - self.marks[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--metrics", nargs="+", default=list(DEFAULT_METRICS))
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine that others use, too")
    args = parser.parse_args()
    count = args.images
    print(f"{count} images at {SIZE}×{SIZE}, batches of {BATCH}; {args.clock} time; {machine()}\n")
    batches = photographs(count)
    torch.manual_seed(0)
    model = VQVAE(ModelConfig(network="small")).eval()
    script, fast = load_script(), Inception()

    @torch.no_grad()
    def bare() -> float:
        total = 0.0
        for images in batches:
            ready = inception_input(images, (0, 255))
            total += seconds(partial(script, ready), args.clock)
        return total

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for _ in range(3):  # TorchScript specialises itself in the first calls
            script(inception_input(batches[0], (0, 255)))
        features = seconds(lambda: [fast(images) for images in batches], args.clock)
        evaluate(model_pairs(model, (ImageBatch(images, [], []) for images in batches)),
                 codebook_size=model.config.codebook_size, metrics=["rfid"], cache=Path(folder))  # fmt: skip
        before = bare()
        timed = Timed(batches, model, Path(folder), args.metrics, args.clock)
        forward = (before + bare()) / 2
    at_target = (timed.per_run + timed.on_images * TARGET / count) / (forward * TARGET / count)
    rows = [
        ["bare Inception forward (TorchScript)", f"{forward:.2f}", f"{1e3 * forward / count:.1f}", "1.00"],
        ["ours, with the resize", f"{features:.2f}", f"{1e3 * features / count:.1f}", f"{features / forward:.2f}"],
        ["evaluation, per image", f"{timed.on_images:.2f}", f"{1e3 * timed.on_images / count:.1f}",
         f"{timed.on_images / forward:.2f}"],
        ["evaluation, once per run", f"{timed.per_run:.2f}", "", ""],
        ["evaluation, all", f"{timed.total:.2f}", f"{1e3 * timed.total / count:.1f}", f"{timed.total / forward:.2f}"],
    ]  # fmt: skip
    print(table(["", "seconds", "ms per image", "of the bare forward"], rows))
    print(f"\nat {TARGET:,} images: {at_target:.2f} × the bare forward")


if __name__ == "__main__":
    main()
