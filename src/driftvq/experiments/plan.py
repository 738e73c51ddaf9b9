"""From a request to its cells: every config is made, and every reason to refuse it found, before any work."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driftvq.data.folder import split_folder
from driftvq.experiments import design
from driftvq.experiments.design import SCALES, SETTINGS, Condition, Recipe, Request, Scale
from driftvq.experiments.methods import Method, find_methods, resolved
from driftvq.experiments.recipes import RECIPES
from driftvq.names import check_name
from driftvq.records.comparisons import Point, Sweep
from driftvq.records.metric_table import NEED_WEIGHTS
from driftvq.training.config import TrainConfig, resolve_steps
from driftvq.training.run import open_images
from driftvq.training.settings import make_config

EMBEDDED = "embedded photographs"
BASE = "base"  # the condition that changes nothing, beside others
# Each cell has one device, and reads its images itself: the other cores have cells of their own.
MACHINE = {"devices": 1, "tensorboard": False, "workers": 0}


@dataclass(frozen=True)
class CellPlan:
    """One method under one condition with one seed; ``after``: the cell whose network it takes over."""

    name: str
    method: Method
    point: Point
    seed: int
    config: TrainConfig
    after: str | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that a comparison will do."""

    request: Request
    recipe: Recipe
    scale: Scale
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    own_splits: bool  # the data itself says what is held out, so that it is the same for every seed
    sweep: Sweep | None = None
    cells: tuple[CellPlan, ...] = ()
    train: int = 0  # images to train on
    evaluation: int = 0  # images to evaluate on
    held_out: int = 0  # images that are not trained on

    @property
    def data(self) -> str:
        return self.request.data or EMBEDDED

    @property
    def base(self) -> TrainConfig:
        """The config of the first cell, whose shared settings describe all."""
        return self.cells[0].config

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured: what the recipe names, or else the scale."""
        names = self.recipe.metrics or self.scale.metrics
        return tuple(name for name in names if not self.scale.without_weights or name not in NEED_WEIGHTS)


def make_plan(request: Request) -> Plan:
    """Lay out the cells of a request; a ValueError names what is unknown, cannot work, or is too little."""
    recipe = RECIPES[check_name("recipe", request.recipe, RECIPES)]
    scale = SCALES[check_name("scale", request.scale, SCALES)]
    if scale.needs_data and request.data is None:
        raise ValueError(f"--scale {scale.name} needs images: --data SPEC; the embedded photographs are too few")
    methods = tuple(find_methods(request.methods or recipe.methods))
    first_seed = request.first_seed or 0
    count = request.seeds or min(recipe.seeds or 1, scale.most.get("seeds", 99))
    seeds = tuple(range(first_seed, first_seed + count))
    path = Path(request.data or "").expanduser()
    own_splits = request.data is None or (path.is_dir() and split_folder(path, "val")[1] == "all")
    plan = Plan(request, recipe, scale, methods, seeds, own_splits)
    conditions = _conditions(plan)
    first = _config(plan, methods[0], {}, 0)
    train = len(open_images(first, "train"))
    evaluation, held_out = _evaluation(plan, first)
    plan = replace(plan, train=train, evaluation=evaluation, held_out=held_out)
    cells = _chosen(tuple(_cells(plan, conditions)), request.conditions)
    return replace(plan, cells=cells, sweep=_sweep(conditions, cells))


def _conditions(plan: Plan) -> tuple[Condition, ...]:
    """The recipe's conditions as the scale has them, without what flags set for all; empty: nothing is varied."""
    request, recipe, scale = plan.request, plan.recipe, plan.scale
    varied, asked = _varied(recipe.conditions), request.codebook_size
    if asked is not None and (varied == ["codebook_size"] or (not varied and len(asked) > 1)):
        return design.every(codebook_size=asked)
    if asked is not None and len(asked) > 1:
        label = " and the ".join(design.titles(name)[0] for name in varied)
        raise ValueError(f"{recipe.name} varies the {label}, so it takes one codebook size, got {list(asked)}")
    conditions = recipe.conditions
    if len(varied) == 1 and varied[0] in scale.sweeps:
        conditions = design.every(**{varied[0]: scale.sweeps[varied[0]]})
    fixed = {name for name in ("codebook_size", *SETTINGS) if getattr(request, name) is not None}
    kept: list[Condition] = []
    for condition in conditions:
        settings = {name: value for name, value in condition.settings.items() if name not in fixed}
        settings = {name: min(value, scale.most.get(name, value)) for name, value in settings.items()}
        if (one := Condition(settings, condition.methods)) not in kept:
            kept.append(one)
    return tuple(kept)


def _varied(conditions: Sequence[Condition]) -> list[str]:
    return list(dict.fromkeys(name for condition in conditions for name in condition.settings))


def _only(conditions: Sequence[Condition]) -> str | None:
    """The setting that every condition sets, and no other."""
    varied = _varied(conditions)
    return varied[0] if len(varied) == 1 and all(condition.settings for condition in conditions) else None


def _sweep(conditions: tuple[Condition, ...], cells: tuple[CellPlan, ...]) -> Sweep | None:
    """What is varied, with the places that the cells have."""
    points, name = tuple(dict.fromkeys(cell.point for cell in cells if cell.point is not None)), _only(conditions)
    if not points or name is None:
        return Sweep("condition", points, "condition") if points else None
    order = [condition.settings[name] for condition in conditions]
    return Sweep(name, tuple(sorted(points, key=order.index)), design.titles(name)[0])


def _cells(plan: Plan, conditions: tuple[Condition, ...]) -> Iterator[CellPlan]:
    """Seed by seed and condition by condition, so that methods can be compared early; who is waited for, first."""
    methods, alone = plan.methods, _only(conditions) is not None
    names = [method.name for method in methods]
    awaited = {method.afterwards for method in methods}
    order = sorted(methods, key=lambda method: (method.name not in awaited, method.afterwards is not None))
    made: set[str] = set()
    for seed in plan.seeds:
        for condition in conditions or (Condition({}),):
            for method in order:
                if condition.methods is not None and method.name not in condition.methods and not plan.request.methods:
                    continue
                change = dict(condition.settings)
                if not method.has_codebook:  # nor a number of codes
                    change.pop("codebook_size", None)
                config, base = _config(plan, method, change, seed), _config(plan, method, {}, seed)
                steps = resolve_steps(base, plan.train)
                if plan.recipe.same_images:
                    steps = max(1, round(steps * base.batch_size / config.batch_size))
                config = replace(config, steps=steps + config.warm_up, epochs=None)
                config = resolved(config, plan.train)
                name = _name(method.name, config, seed, method.has_codebook, change)
                if name in made:  # conditions that differ in the number of codes alone are one to an autoencoder
                    continue
                made.add(name)
                awaits = method.afterwards if method.afterwards in names else None
                after = awaits and _name(awaits, config, seed, has_codebook=False, change=change)
                point = BASE if len(conditions) > 1 and not condition.settings else design.name_of(change, alone)
                yield CellPlan(name, method, point, seed, config, after)


def _chosen(cells: tuple[CellPlan, ...], conditions: Sequence[str] | None) -> tuple[CellPlan, ...]:
    """The cells of these conditions, and those that they wait for; of all if none are named."""
    if conditions is None:
        return cells
    known = list(dict.fromkeys(str(cell.point) for cell in cells if cell.point is not None))
    if not known:
        raise ValueError(f"nothing is varied here, so there is no condition to choose, got {list(conditions)}")
    wanted = {check_name("condition", name, known) for name in conditions}
    kept = [cell for cell in cells if str(cell.point) in wanted]
    awaited = {cell.after for cell in kept}
    return tuple(cell for cell in cells if cell in kept or cell.name in awaited)


def _config(plan: Plan, method: Method, change: Mapping[str, Any], seed: int) -> TrainConfig:
    """Machine, scale, recipe, method, flags, condition: the later one wins."""
    request, recipe, scale = plan.request, plan.recipe, plan.scale
    flags: dict[str, Any] = {name: value for name in SETTINGS if (value := getattr(request, name)) is not None}
    if request.codebook_size is not None:
        flags["codebook_size"] = request.codebook_size[0]
    machine = MACHINE if request.data is None else {**MACHINE, "workers": 1}
    single = recipe.at_scale.get(scale.name, {}), recipe.method_settings.get(method.name, {})
    settings = (machine, scale.settings, recipe.settings, *single, scale.overrides, method.settings)
    return make_config(*settings, flags, change, {"seed": seed})


def _name(method: str, config: TrainConfig, seed: int, has_codebook: bool, change: Mapping[str, Any]) -> str:
    """A folder's name that tells a cell from all others of its comparison."""
    codes = f"k{config.codebook_size}-" if has_codebook else ""
    named = ("codebook_size", "code_dim", "batch_size")
    others = [(name.replace("_", ""), value) for name, value in change.items() if name not in named]
    more = "".join(f"-{name}{design.short(value)}" for name, value in others)
    return f"{method}--{codes}d{config.code_dim}-b{config.batch_size}{more}--seed{seed}"


def _evaluation(plan: Plan, config: TrainConfig) -> tuple[int, int]:
    """How many images to evaluate on, and how many are held out; there must be so many for every seed."""
    request, recipe, scale = plan.request, plan.recipe, plan.scale
    seeds = plan.seeds[:1] if plan.own_splits or request.val_data is not None else plan.seeds
    counts = [len(open_images(replace(config, seed=seed), "val")) for seed in seeds]
    wanted, there = request.evaluation or recipe.evaluation or scale.evaluation, min(counts)
    if wanted is not None:
        wanted = min(wanted, scale.most.get("evaluation", wanted))
    if wanted is not None and there < wanted:
        where = request.val_data or request.data or EMBEDDED
        asks = "--evaluation-images" if request.evaluation else f"{recipe.name} at scale {scale.name!r}"
        has = f"{where} has {there} image{'s' * (there != 1)} to evaluate on, and {asks} wants {wanted}"
        raise ValueError(f"{has}: name more with --val-data, or ask for --evaluation-images {there}")
    return wanted or there, there
