"""Does what the paper says hold? Each claim decided by a rule, from the cells of the study that have been run.

``benchmarks/results.py`` puts the table on docs/study.md. A cell is one method with K codes of D dimensions; a claim
about several cells is open as long as those that are missing could decide it.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from driftvq.records.comparisons import Cell

SIZES, DIMS = (64, 1024, 8192), (3, 64)
PLACES = tuple((codes, dim) for dim in reversed(DIMS) for codes in SIZES)
MIDDLE = (1024, 64)
BATCH_SIZE = 16
ALIVE = 0.99
CLOSE = 0.03  # one seed of each says nothing of two methods that differ by less
HOLDS, FAILS, LEVEL, OPEN = "holds", "does not hold", "cannot be told", "open"

NS_VQ = {"as printed": "ns_vq_paper", "authors' code": "ns_vq_published", "ours": "ns_vq"}
TRANS_VQ = {
    **{"as printed": "trans_vq_paper", "authors' code": "trans_vq_published", "ours": "trans_vq"},
    **{"as printed, MLP": "trans_vq_mlp_paper", "ours, MLP": "trans_vq_mlp"},
}

Where = tuple[int, int]  # K and D
At = tuple[str, Where]  # a method there
Answer = bool | None  # None: too close to tell


class Verdict(NamedTuple):
    """One of four words, and what it rests on."""

    word: str
    numbers: str


Decide = Callable[["Study"], Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and of whom it is said."""

    sentence: str
    of: str
    decide: Decide


class Study:
    """The finished cells of the study, seeds together."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells: dict[tuple[str, int | None, int | None, int, int | None], list[Cell]] = {}
        for cell in cells:
            if cell.status == "done":
                key = (cell.method, cell.codebook_size, cell.code_dim, cell.config["batch_size"], cell.steps)
                self._cells.setdefault(key, []).append(cell)

    def values(self, method: str, where: Where, name: str = "rfid") -> list[float]:
        """A metric of all seeds, of which a comparison has each once; empty: not run."""
        found = [
            cells
            for (one, codes, dim, batch, _), cells in self._cells.items()
            if one == method and batch == BATCH_SIZE and dim == where[1] and codes in (where[0], None)
        ]
        by_seed = {cell.seed: cell for cells in found for cell in cells}
        read = (cell.ms_per_step if name == "ms_per_step" else cell.values.get(name) for cell in by_seed.values())
        return [value for value in read if value is not None]

    def by_batch(self, method: str, equal_steps: bool) -> dict[int, float]:
        """Mean rFID by batch size at K = D = 64, over as many steps, or over as many images."""
        found = {key: cells for key, cells in self._cells.items() if key[:3] == (method, 64, 64)}
        base = {steps for (*_, batch, steps) in found if batch == BATCH_SIZE}
        chosen = {}
        for (*_, batch, steps), cells in found.items():
            wanted = base if equal_steps else {round((one or 0) * BATCH_SIZE / batch) for one in base}
            if steps in wanted:
                chosen[batch] = statistics.fmean(cell.values["rfid"] for cell in cells)
        return dict(sorted(chosen.items()))


def lower(ours: Sequence[float], theirs: Sequence[float]) -> Answer:
    """Whether the first mean is lower, by more than seeds differ; with one seed, by more than :data:`CLOSE`."""
    first, second = statistics.fmean(ours), statistics.fmean(theirs)
    several = min(len(ours), len(theirs)) > 1
    margin = max(map(statistics.stdev, (ours, theirs))) if several else CLOSE * min(first, second)
    return None if abs(first - second) <= margin else first < second


def word(answers: Sequence[Answer], needed: int, missing: int) -> str:
    """What so many answers say of a claim that needs so many of them to be true, and wants for ``missing`` more."""
    true, level = answers.count(True), answers.count(None)
    if true >= needed:
        return HOLDS
    if true + level + missing < needed:
        return FAILS
    return OPEN if missing else LEVEL


def uses_all(method: str) -> Decide:
    """At every K and D."""

    def decide(study: Study) -> Verdict:
        found = {where: study.values(method, where, "usage") for where in PLACES}
        means = {_name(where): statistics.fmean(values) for where, values in found.items() if values}
        shown = {name: f"{share:.1%}" for name, share in means.items()}
        return _verdict([share >= ALIVE for share in means.values()], len(PLACES), len(PLACES), shown)

    return decide


def lower_in(pairs: Mapping[str, tuple[At, At]], needed: int | None = None) -> Decide:
    """The first of each pair has the lower rFID, in all pairs or in so many."""

    def decide(study: Study) -> Verdict:
        answers, shown = list[Answer](), dict[str, str]()
        for name, sides in pairs.items():
            first, second = (study.values(*side) for side in sides)
            if first and second:
                answers.append(lower(first, second))
                shown[name] = f"{_mean(first)} against {_mean(second)}"
        return _verdict(answers, needed or len(pairs), len(pairs), shown)

    return decide


def better(method: str, other: str, places: Sequence[Where] = PLACES, needed: int | None = None) -> Decide:
    return lower_in({_name(where): ((method, where), (other, where)) for where in places}, needed)


def higher_dimension(method: str) -> Decide:
    """D = 64 has a lower rFID than D = 3 at every K."""
    return lower_in({f"K {codes}": ((method, (codes, 64)), (method, (codes, 3))) for codes in SIZES})


def modified_helps() -> Decide:
    """In three of four."""
    titles = {"ns_vq": "NS-VQ", "trans_vq_mlp": "TransVQ-MLP"}
    return lower_in(
        {
            f"{title}, {_name(where)}": ((f"{name}_modified", where), (name, where))
            for name, title in titles.items()
            for where in PLACES
            if where[1] == 64 and where[0] > 64
        },
        needed=3,
    )


def falls_with_batch(method: str, equal_steps: bool) -> Decide:
    """From each batch size to the next, but one at most."""

    def decide(study: Study) -> Verdict:
        found = study.by_batch(method, equal_steps)
        if len(found) < 5:
            return Verdict(OPEN, "")
        rises = sum(after >= before for before, after in pairwise(found.values()))
        shown = ", ".join(f"batch {batch}: {value:.1f}" for batch, value in found.items())
        return Verdict(HOLDS if rises <= 1 else FAILS, shown)

    return decide


def fast_and_close(study: Study) -> Verdict:
    """The MLP: within 10 % of attention by rFID, and half of its time or less, the network's not counted."""
    values = {name: study.values(name, MIDDLE) for name in ("trans_vq_mlp_paper", "trans_vq_paper")}
    times = {name: study.values(name, MIDDLE, "ms_per_step") for name in (*values, "autoencoder")}
    if not all(values.values()) or not all(times.values()):
        return Verdict(OPEN, "")
    (mlp, attention), network = map(statistics.fmean, values.values()), statistics.fmean(times["autoencoder"])
    fast, slow = (statistics.fmean(times[name]) - network for name in values)
    said = HOLDS if mlp <= 1.1 * attention and fast <= slow / 2 else FAILS
    costs = f"{fast:.0f} ms a step against {slow:.0f}, beside the network's {network:.0f}"
    return Verdict(said, f"{mlp:.1f} against {attention:.1f}; {costs}")


def _verdict(answers: Sequence[Answer], needed: int, asked: int, shown: Mapping[str, str]) -> Verdict:
    numbers = "; ".join(f"{name}: {text}" for name, text in shown.items())
    return Verdict(word(answers, needed, asked - len(answers)), numbers)


def _name(where: Where) -> str:
    return f"K {where[0]}, D {where[1]}"


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def claims() -> Iterator[Claim]:
    """What the paper says, in the order of its sections; numbers are rFID unless they are percent or milliseconds."""
    for title, forms in (("NS-VQ", NS_VQ), ("TransVQ", TRANS_VQ)):
        for form, method in forms.items():
            yield Claim(f"{title} uses all codes", form, uses_all(method))
    peers = {"VQGAN-EMA": "vqgan_ema_authors", "VQGAN-EMA tuned to N/K": "ema_tuned", "SimVQ": "sim_vq"}
    for peer, other in peers.items():
        for title, forms in (("NS-VQ", NS_VQ), ("TransVQ", TRANS_VQ)):
            for form, method in forms.items():
                yield Claim(f"{title} is better than {peer}", form, better(method, other, needed=5))
    for form, method in TRANS_VQ.items():
        other = NS_VQ[form.partition(", ")[0]]
        yield Claim("TransVQ is better than NS-VQ at K = 8192", form, better(method, other, [(8192, 64)]))
    for title, forms in (("NS-VQ", NS_VQ), ("TransVQ", TRANS_VQ)):
        for form, method in forms.items():
            yield Claim("low dimension is no longer better", f"{title}, {form}", higher_dimension(method))
    for equal in (False, True):
        counted = "as many steps" if equal else "as many images"
        for label, method in (("VQ-VAE", "vq"), ("NS-VQ, ours", "ns_vq")):
            yield Claim("larger batches are better", f"{label}, {counted}", falls_with_batch(method, equal))
    yield Claim("ΔE improves the vanilla quantizer", "ΔE : vanilla", better("ns_vq_delta_e", "vq", [MIDDLE]))
    yield Claim("the MLP is slightly worse and much faster", "as printed", fast_and_close)
    yield Claim("the modified estimator helps", "ours", modified_helps())


def verdicts(cells: Iterable[Cell]) -> list[tuple[str, str, str, str]]:
    """A row for each claim: what the paper says, of whom, the word and the numbers."""
    study = Study(cells)
    return [(claim.sentence, claim.of, *claim.decide(study)) for claim in claims()]
