"""Does a codebook follow a cloud that moves nonlinearly? No network, no images: points, codes and what moves them.

python benchmarks/tracking.py                                       # all settings, methods and seeds; long
python benchmarks/tracking.py --settings 16 --seeds 1 --methods ns_vq
python benchmarks/tracking.py --out tracking.json                   # goes on where it was stopped

20,000 points in 64 blobs (centres of spread 2, unit noise) move in a straight line, each with the velocity that one
random smooth field has where the point starts: a two-layer tanh network of 64 units. The codes start as the k-means of
the cloud; each step they see N random points of it. Measured after ¼, ½ and all of the way, over the whole cloud:
squared error, divided by that of k-means on the cloud as it is then, and the share of codes that a point selects.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from driftvq.files import write_text
from driftvq.functional import kmeans, nearest
from driftvq.quantizers import EMAVQ, NSVQ, TransVQ
from driftvq.quantizers.codebook import CodebookQuantizer
from measure import machine, table

POINTS, BLOBS, BLOB_SPREAD = 20_000, 64, 2.0
FIELD_UNITS = 64
WAY = 3.6
"""How far the points go, root mean square per dimension, in standard deviations of the cloud."""
KMEANS_ITERATIONS = 20
LEARNING_RATE = 1e-3
SEEDS = 3


@dataclass(frozen=True)
class Setting:
    """D dimensions, K codes, N points a step, T steps."""

    dim: int
    codes: int
    latents: int
    steps: int

    @property
    def marks(self) -> tuple[int, int, int]:
        """The steps after which it is measured."""
        return self.steps // 4, self.steps // 2, self.steps


SETTINGS = {
    "16": Setting(16, 4096, 256, 400),
    "3": Setting(3, 4096, 256, 400),
    "64": Setting(64, 4096, 64, 800),
}


def _fixed_features(setting: Setting) -> CodebookQuantizer:
    vq = TransVQ(setting.dim, setting.codes, transform="mlp")
    vq.book.get_submodule("parts.drift.features").requires_grad_(False)
    return vq


def _replacing(setting: Setting) -> CodebookQuantizer:
    return EMAVQ(setting.dim, setting.codes, threshold_ema_dead_code=0.5 * setting.latents / setting.codes)


@dataclass(frozen=True)
class Method:
    """A contestant."""

    label: str
    make: Callable[[Setting], CodebookQuantizer]
    knows_the_way: bool = False
    """Whether each code is moved, before each step, as the point of the cloud is that lies nearest to it."""


METHODS = {
    "ns_vq": Method("NSVQ", lambda s: NSVQ(s.dim, s.codes)),
    "trans_vq_mlp": Method("TransVQ, MLP", lambda s: TransVQ(s.dim, s.codes, transform="mlp")),
    "trans_vq": Method("TransVQ, attention", lambda s: TransVQ(s.dim, s.codes)),
    "trans_vq_mlp_fixed": Method("TransVQ, MLP, h left as drawn", _fixed_features),
    "ns_vq_no_drift": Method("NSVQ without the drift", lambda s: NSVQ(s.dim, s.codes, parts=("winners", "relocation"))),
    "ns_vq_no_relocation": Method(
        "NSVQ, lost codes stay lost", lambda s: NSVQ(s.dim, s.codes, parts=("drift", "winners"))
    ),
    "known": Method(
        "winners and relocation, the drift known",
        lambda s: NSVQ(s.dim, s.codes, parts=("winners", "relocation")),
        knows_the_way=True,
    ),
    "ema": Method("EMA + replacement below half of N/K", _replacing),
}


@dataclass(frozen=True)
class Result:
    """A run: distortion ÷ k-means and usage at the marks, and the lost codes moved, where they are counted."""

    setting: str
    method: str
    seed: int
    distortion: list[float]
    usage: list[float]
    relocated: int | None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.setting, self.method, self.seed


@cache
def start_and_velocity(dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """The cloud before it moves, and how far each point goes ``(n, d)``."""
    generator = torch.Generator().manual_seed(seed)
    centres = BLOB_SPREAD * torch.randn(BLOBS, dim, generator=generator)
    which = torch.randint(BLOBS, (POINTS,), generator=generator)
    points = centres[which] + torch.randn(POINTS, dim, generator=generator)
    first = torch.randn(dim, FIELD_UNITS, generator=generator) * dim**-0.5
    bias = torch.randn(FIELD_UNITS, generator=generator)
    second = torch.randn(FIELD_UNITS, dim, generator=generator) * FIELD_UNITS**-0.5
    scale = (BLOB_SPREAD**2 + 1) ** 0.5
    field = torch.tanh(points / scale @ first + bias) @ second
    return points, field / field.square().mean().sqrt() * (WAY * points.std())


def cloud(setting: Setting, seed: int, step: int) -> Tensor:
    """Where the points are after so many steps ``(n, d)``."""
    points, way = start_and_velocity(setting.dim, seed)
    return points + way * (step / setting.steps)


@cache
def optimum(setting: Setting, seed: int, step: int) -> tuple[Tensor, float]:
    """Codes and squared error of k-means on the cloud as it is then."""
    generator = torch.Generator().manual_seed(0)
    result = kmeans(cloud(setting, seed, step), setting.codes, KMEANS_ITERATIONS, generator=generator)
    return result.codebook, float(result.inertia)


def measure(vq: CodebookQuantizer, points: Tensor) -> tuple[float, float]:
    """Squared error of the whole cloud, and the share of codes in use."""
    codes = vq.codebook.detach()
    indices = nearest(points, codes)
    return float((points - codes[indices]).square().sum()), len(indices.unique()) / len(codes)


def track(setting_name: str, method_name: str, seed: int) -> Result:
    """Let one codebook follow the cloud."""
    setting, method = SETTINGS[setting_name], METHODS[method_name]
    torch.manual_seed(seed)
    vq = method.make(setting).train()
    vq.set_codebook_(optimum(setting, seed, 0)[0])
    trained = [parameter for parameter in vq.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, LEARNING_RATE) if trained else None
    generator = torch.Generator().manual_seed(100 + seed)
    distortion, usage = [], []
    for step in range(1, setting.steps + 1):
        if method.knows_the_way:
            codes, way = vq.book.get_buffer("codes"), start_and_velocity(setting.dim, seed)[1]
            codes += way[nearest(codes, cloud(setting, seed, step - 1))] / setting.steps
        points = cloud(setting, seed, step)
        loss = vq(points[torch.randint(POINTS, (setting.latents,), generator=generator)]).loss
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step in setting.marks:
            error, used = measure(vq, points)
            distortion.append(error / optimum(setting, seed, step)[1])
            usage.append(used)
    relocated = vq.readings().get("relocated")
    return Result(setting_name, method_name, seed, distortion, usage, None if relocated is None else int(relocated))


def read(path: Path | None) -> list[Result]:
    """What earlier runs have left."""
    if path is None or not path.is_file():
        return []
    return [Result(**entry) for entry in json.loads(path.read_text())]


def results_table(results: Sequence[Result], settings: Iterable[str], methods: Iterable[str]) -> str:
    """Mean over seeds, ± their standard deviation."""
    rows = []
    for setting_name in settings:
        setting = SETTINGS[setting_name]
        for method in methods:
            runs = [one for one in results if (one.setting, one.method) == (setting_name, method)]
            if not runs:
                continue
            distortions = zip(*(run.distortion for run in runs), strict=True)
            usages = zip(*(run.usage for run in runs), strict=True)
            cells = [f"{_spread(far, 2)} / {_spread(used, 3)}" for far, used in zip(distortions, usages, strict=True)]
            moved = [run.relocated for run in runs if run.relocated is not None]
            place = f"{setting.dim}, {setting.codes:,}, {setting.latents}, {setting.steps}"
            rows.append([place, METHODS[method].label, *cells, _spread(moved, 0), str(len(runs))])
    return table(["D, K, N, T", "what moves the codes", "¼", "½", "all of the way", "relocated", "seeds"], rows)


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="dimensions D")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many, from 0 on (default {SEEDS})")
    parser.add_argument("--out", type=Path, help="JSON file; runs that it has are not repeated")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = read(args.out)
    done = {result.key for result in results}
    # Methods change fastest: those of one cloud share its k-means.
    for setting in args.settings:
        for seed in range(args.seeds):
            for method in args.methods:
                if (setting, method, seed) in done:
                    continue
                results.append(track(setting, method, seed))
                if args.out is not None:
                    write_text(args.out, json.dumps([asdict(result) for result in results], indent=1) + "\n")
    chosen = [result for result in results if result.seed < args.seeds]
    print(f"Distortion ÷ k-means / usage; {machine()}\n")
    print(results_table(chosen, args.settings, args.methods))


if __name__ == "__main__":
    main()
