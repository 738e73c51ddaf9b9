"""From a request to its cells: every config is made, and every reason to refuse it found, before any work."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftvq.experiments.methods import Method, find_methods
from driftvq.experiments.recipe import CODEBOOK_SIZES, Recipe, Sweep
from driftvq.experiments.recipes import RECIPES
from driftvq.experiments.request import Request
from driftvq.experiments.scales import SCALES, Scale
from driftvq.names import check_name
from driftvq.training.config import TrainConfig, resolve_steps
from driftvq.training.settings import make_config

if TYPE_CHECKING:
    from driftvq.data import ImageSource

EMBEDDED = "embedded photographs"
MACHINE = {"devices": 1, "tensorboard": False, "workers": 0}
"""Each cell has one device, and reads its images itself: the other cores have cells of their own."""


@dataclass(frozen=True)
class CellPlan:
    """One method at one place of the sweep with one seed.

    Attributes:
        after: the cell whose network this one takes over.
    """

    name: str
    method: Method
    point: int | None
    seed: int
    config: TrainConfig
    after: str | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that a comparison will do.

    Attributes:
        evaluation: number of images to evaluate on.
        train: number of images to train on.
    """

    request: Request
    recipe: Recipe
    scale: Scale
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    sweep: Sweep | None
    cells: tuple[CellPlan, ...]
    train: int
    evaluation: int
    own_splits: bool

    @property
    def data(self) -> str:
        """The images, for readers."""
        return self.request.data or EMBEDDED

    @property
    def base(self) -> TrainConfig:
        """The config of the first cell, whose shared settings describe all."""
        return self.cells[0].config


def make_plan(request: Request) -> Plan:
    """Check a request and lay out its cells.

    Raises:
        ValueError: an unknown name, a setting that cannot work, no data, or too few images to evaluate on.
    """
    recipe = RECIPES[check_name("recipe", request.recipe, RECIPES)]
    scale = SCALES[check_name("scale", request.scale, SCALES)]
    methods = tuple(find_methods(request.methods or recipe.methods))
    seeds = tuple(range(request.seeds or scale.seeds))
    sweep = _sweep(request, recipe, scale)
    first = _config(request, recipe, scale, methods[0], None, 0)
    train = len(open_images(first, "train"))
    evaluation = _evaluation(request, scale, first, seeds)
    cells = tuple(_cells(request, recipe, scale, methods, seeds, sweep, train))
    return Plan(request, recipe, scale, methods, seeds, sweep, cells, train, evaluation, _has_splits(request.data))


def open_images(config: TrainConfig, split: str) -> "ImageSource":
    """The images of a run, split as its training splits them."""
    from driftvq.data import open_source

    options: dict[str, Any] = {"val_share": config.val_share, "seed": config.seed, "size": config.size}
    if split == "val" and config.val_data is not None:
        return open_source(config.val_data, "all", **options)
    return open_source(config.data, split, **options)


def _sweep(request: Request, recipe: Recipe, scale: Scale) -> Sweep | None:
    sweep = recipe.sweep
    if sweep is not None and sweep.field in scale.sweeps:
        sweep = replace(sweep, values=scale.sweeps[sweep.field])
    asked = request.codebook_size
    if asked is None:
        return sweep
    if sweep is not None and sweep.field == "codebook_size":
        return replace(sweep, values=asked)
    if len(asked) > 1 and sweep is not None:
        raise ValueError(f"{recipe.name} varies the {sweep.label}, so it takes one codebook size, got {list(asked)}")
    return replace(CODEBOOK_SIZES, values=asked) if len(asked) > 1 else sweep


def _cells(
    request: Request,
    recipe: Recipe,
    scale: Scale,
    methods: tuple[Method, ...],
    seeds: tuple[int, ...],
    sweep: Sweep | None,
    train: int,
) -> Iterator[CellPlan]:
    """Seed by seed, so that all methods have a first result before any has a second one; who is waited for, first."""
    names = [method.name for method in methods]
    awaited = {method.afterwards for method in methods}
    order = sorted(methods, key=lambda method: (method.name not in awaited, method.afterwards is not None))
    for seed in seeds:
        for method in order:
            touched = sweep is not None and (sweep.field != "codebook_size" or method.has_codebook)
            points: tuple[int | None, ...] = sweep.values if sweep is not None and touched else (None,)
            for point in points:
                change = {} if sweep is None or point is None else {sweep.field: point}
                config = _config(request, recipe, scale, method, change, seed)
                config = _resolved(config, recipe, scale, method, train)
                after = None
                if method.afterwards in names:
                    after = _name(method.afterwards, config, seed, has_codebook=False)
                yield CellPlan(
                    _name(method.name, config, seed, method.has_codebook), method, point, seed, config, after
                )


def _config(
    request: Request,
    recipe: Recipe,
    scale: Scale,
    method: Method,
    change: Mapping[str, Any] | None,
    seed: int,
) -> TrainConfig:
    """Base, scale, recipe, method, flags, place in the sweep: the later one wins."""
    own = recipe.method_settings.get(method.name, {})
    flags: dict[str, Any] = {
        name: value
        for name in ("data", "val_data", "code_dim", "batch_size", "size", "steps")
        if (value := getattr(request, name)) is not None
    }
    if request.codebook_size is not None:
        flags["codebook_size"] = request.codebook_size[0]
    machine = MACHINE if request.data is None else {**MACHINE, "workers": 1}
    return make_config(
        machine,
        scale.settings,
        recipe.settings,
        recipe.paper_settings if scale.name == "paper" else {},
        own,
        scale.overrides,
        method.settings,
        flags,
        change or {},
        {"seed": seed},
    )


def _resolved(config: TrainConfig, recipe: Recipe, scale: Scale, method: Method, train: int) -> TrainConfig:
    """The config with its number of steps, and with the epochs of methods that count in them."""
    steps = resolve_steps(config, train)
    if recipe.same_images and config.epochs is None:
        reference = scale.settings.get("batch_size", scale.overrides.get("batch_size", config.batch_size))
        steps = max(1, round(steps * reference / config.batch_size))
    options = dict(config.quantizer_options)
    if method.decays_per_epoch:
        options["decay_every"] = max(1, round(train / (config.batch_size * config.accumulate)))
    return replace(config, steps=steps, epochs=None, quantizer_options=options)


def _name(method: str, config: TrainConfig, seed: int, has_codebook: bool) -> str:
    codes = f"k{config.codebook_size}-" if has_codebook else ""
    return f"{method}--{codes}d{config.code_dim}-b{config.batch_size}--seed{seed}"


def _evaluation(request: Request, scale: Scale, config: TrainConfig, seeds: tuple[int, ...]) -> int:
    """How many images to evaluate on; there must be so many for every seed."""
    own = _has_splits(request.data) or request.val_data is not None
    counts = [len(open_images(replace(config, seed=seed), "val")) for seed in (seeds[:1] if own else seeds)]
    wanted, there = request.evaluation or scale.evaluation, min(counts)
    if wanted is not None and there < wanted:
        where = request.val_data or request.data or EMBEDDED
        raise ValueError(
            f"{where} has {there} images to evaluate on, and scale {scale.name!r} wants {wanted}: "
            f"give more images, or --evaluation-images {there}"
        )
    return wanted or there


def _has_splits(data: str | None) -> bool:
    """Whether the data itself says what is held out, so that it is the same for every seed."""
    if data is None:
        return True
    from driftvq.data.folder import split_folder

    return Path(data).is_dir() and split_folder(Path(data), "val")[1] == "all"
