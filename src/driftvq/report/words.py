"""What the numbers say, in words: the answer, and the paper's numbers beside ours."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

from driftvq.records.comparisons import Comparison, PaperRow, Point
from driftvq.records.metric_table import METRICS, metric, plain_label, with_unit, written, written_p, written_spread
from driftvq.records.runs import RUN
from driftvq.report.results import Results, Row, covers, on_common_seeds, paired_test, within_spread

OWN = ("ours", "paper", "ablation")  # the groups of the paper's methods, in its forms and in ours
# What a request must leave alone for the settings to be the paper's; of what a recipe varies it may take a part.
PAPERS_OWN = ("steps", "size", "batch_size", "code_dim", "codebook_size", "evaluation")
SETTING = {  # what is said of the data and the settings, beside those of the paper
    **{"data.source": "{}", "data.train": "{} training images", "data.evaluation": "{} evaluation images"},
    **{"data.size": "{} pixels a side", "steps": "{} steps", "batch_size": "batches of {}"},
    **{"code_dim": "code dimension {}", "network": "network “{}”"},
}
SIGNIFICANT = 0.05
ONE_SEED = "One seed tells who collapses, not who wins by a little: there is no spread to compare the difference with."


class Answer(NamedTuple):
    """Who is best and by how much, who collapsed, the yardsticks, what is not finished; empty: nothing to say."""

    best: str
    collapsed: str
    references: str
    progress: str

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


def answer(results: Results) -> Answer:
    """Which method is best in the lead metric, by how much against the best trained peer, and who collapsed."""
    if results.comparison.recipe == RUN:
        return _run(results)
    places = [point for point in results.points if results.ranked(point)]
    best = f"{_wins(results, places)}{_against(results, places[-1])}." if places else "There is no result yet."
    if places:
        first, rival = _pair(results, places[-1])
        pair = [first.values[results.lead]] if rival is None else on_common_seeds(first, rival, results.lead)
        best += f" {ONE_SEED}" if min(found.n for found in pair) == 1 else ""
    references = _references(results, (places or results.points)[-1])
    if references and not places:
        best = "Nothing here is ranked."
    done, cells = results.count("done"), len(results.comparison.cells)
    others = [f", {n} {status}" for status in ("failed", "running", "waiting") if (n := results.count(status))]
    progress = f"So far {done} of {cells} cells are done{''.join(others)}." if done < cells else ""
    return Answer(best, _collapse(results), references, progress)


def counted(results: Results) -> list[str]:
    """What usage was counted over."""
    over = dict.fromkeys(cell.usage_over for row in results.rows for cell in row.done if cell.usage_over)
    return [f"Usage and perplexity over {text}." for text in over]


def _run(results: Results) -> Answer:
    (row,) = results.rows
    names = [name for name in results.columns if metric(name).better and name not in ("usage", "loss")]
    values = ", ".join(f"{plain_label(name)} {with_unit(name, row.values[name].mean)}" for name in names)
    asked, done = results.comparison.config.get("steps"), row.done[0].steps
    of = f" of {asked:,}" if asked else ""
    best = f"After {done:,}{of} steps: {values}." if values else f"After {done:,}{of} steps nothing was validated yet."
    if row.state is None:
        return Answer(best, "", "", "")
    shown = {name: written(name, row.values[name].mean, 1) for name in ("usage", "selected") if name in row.values}
    seen = f"; the validation images select {shown['selected']}" if "selected" in shown else ""
    used = f"{shown['usage']} of the codes were selected in {row.done[0].usage_over}"
    return Answer(best, f"The codebook is {row.state}: {used}{seen}.", "", "")


def listed(values: Sequence[object]) -> str:
    """Values as words: a, b and c."""
    texts = [str(value) for value in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _wins(results: Results, places: Sequence[Point]) -> str:
    """Up to the value that the winner has at the last place."""
    winners: dict[str, list[Point]] = {}
    for point in places:
        winners.setdefault(results.ranked(point)[0].method.label, []).append(point)
    (label, won), *others = sorted(winners.items(), key=lambda item: -len(item[1]))
    sweep, last = results.comparison.sweep, places[-1]
    extreme = "lowest" if metric(results.lead).better == "lower" else "highest"
    leads = f"{label} has the {extreme} {plain_label(results.lead)}"
    if sweep is None:
        return f"{leads}, "
    if len(places) == 1:
        return f"{leads} at {sweep.label} = {last}, "
    if not others:
        points = f"at every {sweep.label} from {places[0]} to {last}"
        everywhere = f"under all {len(places)} conditions" if isinstance(last, str) else points
        return f"{leads} {everywhere}; at {last} it has "
    rest = [f"{other} at {listed(points)}" for other, points in others]
    winner = results.ranked(last)[0].method.label
    return f"By {sweep.label}, {leads} at {listed(won)}, {listed(rest)}; at {last} {winner} has "


def _pair(results: Results, point: Point) -> tuple[Row, Row | None]:
    """The best, and whom it is held against: the best of the other side, else the next."""
    best, *others = results.ranked(point)
    own = best.method.group in OWN
    return best, next((row for row in others if (row.method.group in OWN) != own), others[0] if others else None)


def _against(results: Results, point: Point) -> str:
    lead, digits = results.lead, results.digits[results.lead]
    best, rival = _pair(results, point)
    value = _value(best, lead, digits)
    if rival is None:
        return f"{value}; no other method has a result to compare with"
    own, second = best.method.group in OWN, results.ranked(point)[1]
    other_side = "the best trained peer" if own else "the best of the paper's methods and ours"
    title = "the next" if (rival.method.group in OWN) == own else other_side
    other = f"{title}, {rival.method.label} ({_value(rival, lead, digits)})"
    text = f"{value}, {_verdict(best, rival, lead, other)}"
    if second is not rival and second.within_spread:
        text += f"; the next, {second.method.label} ({_value(second, lead, digits)}), is within the spread of the best"
    return text


def _verdict(best: Row, rival: Row, lead: str, other: str) -> str:
    a, b = on_common_seeds(best, rival, lead)
    if not a.n == b.n == best.values[lead].n == rival.values[lead].n:
        other += f", by the {'one seed' if a.n == 1 else f'{a.n} seeds'} that both have"
    amount = _amount(a.mean, b.mean, lead)
    within = within_spread(a, b)
    if within is None or a.mean == b.mean:
        return f"{amount} {other}"
    test = paired_test(best.by_seed(lead), rival.by_seed(lead))
    p = written_p(test.p) if test is not None and test.p is not None else "no common seeds"
    n = test.n if test is not None else min(a.n, b.n)
    if within:
        return f"but {other} is within the spread of the {n} seeds (paired test: {p}), so neither wins"
    if test is None or test.p is None or test.p >= SIGNIFICANT:
        return f"{amount} {other}: more than the spread, but {n} seeds cannot rule out chance (paired test: {p})"
    return f"{amount} {other}: more than the spread of the {n} seeds (paired test: {p})"


def _amount(a: float, b: float, name: str) -> str:
    """How much lower or higher the first is, up to the name of the second."""
    if a == b:
        return "as has"
    way = f"{'lower' if a < b else 'higher'} than"
    if metric(name).unit == "dB":
        return f"{with_unit(name, abs(a - b))} {way}" if abs(a - b) >= 0.005 else f"less than 0.01 dB {way}"
    if min(a, b) <= 0:
        return way
    share = abs(a - b) / b
    return f"{share:.0%} {way}" if share >= 0.005 else f"less than 1% {way}"


def _references(results: Results, point: Point) -> str:
    """The yardsticks at a place, which no sweep may touch."""
    rows = [row for row in results.rows if row.method.group == "reference" and covers(row.point, point)]
    digits = results.digits.get(results.lead, 2)
    named = [f"{row.method.label}: {_value(row, results.lead, digits)}" for row in rows if results.lead in row.values]
    return f"As a yardstick, not ranked: {listed(named)}." if named else ""


def _value(row: Row, name: str, digits: int) -> str:
    mean, spread, _ = row.values[name]
    text = written(name, mean, digits)
    return text if spread is None else f"{text} ± {written_spread(name, spread, digits)}"


def _collapse(results: Results) -> str:
    collapsed: dict[str, list[str]] = {}
    places = results.points if len(results.points) > 1 else ()
    for row in (row for row in results.rows if row.collapsed):
        shares = {f"seed {seed}: ": used for seed, used in row.collapsed.items()}
        if len(shares) == len(row.by_seed("usage")):
            shares = {"": row.values["usage"].mean}
        text = ", ".join(f"{which}{written('usage', used, 1)} of the codes used" for which, used in shares.items())
        collapsed.setdefault(row.method.label, []).append(f"{text} at {row.point}" if row.point in places else text)
    if not collapsed:
        return "No codebook collapsed." if any("usage" in row.values for row in results.rows) else ""
    names = [f"{label} ({', '.join(used)})" for label, used in collapsed.items()]
    return f"Collapsed: {listed(names)}."


def gather_paper(results: Results) -> dict[str, Any] | None:
    """The paper's rows with ours; None if the comparison has no such numbers."""
    paper = results.comparison.paper
    if paper is None or not paper.rows:
        return None
    names = [name for name in METRICS if any(name in row.values for row in paper.rows)]
    names += sorted({name for row in paper.rows for name in row.values} - set(names))
    ours = {(row.method.name, row.point): row for row in reversed(results.rows)}
    pairs = [(row, ours.get((row.method, row.point)) or ours.get((row.method, None))) for row in paper.rows]
    return {
        "source": paper.source, "difference": scale_difference(results.comparison),
        "agreement": [text for name in names if (text := _agreement(pairs, name))],
        "columns": [{"name": name, "label": metric(name).label} for name in names],
        "rows": [_beside(results, row, ours, names) for row, ours in pairs],
    }  # fmt: skip


def scale_difference(comparison: Comparison) -> str:
    """What differs between the paper's experiment and this one."""
    known = {f"data.{name}": value for name, value in comparison.data.items()} | comparison.config
    here = [text.format(known[name]) for name, text in SETTING.items() if name in known]
    setting = comparison.paper.setting if comparison.paper else ""
    start = f"The paper: {setting}. Here, at {comparison.scale} scale: {', '.join(here)}. "
    varied = comparison.sweep.field if comparison.sweep else None
    changed = [name for name in PAPERS_OWN if name != varied and comparison.request.get(name) is not None]
    if comparison.scale == "paper" and not changed:
        return start + "The settings are the paper's; what differs is said in the notes."
    return start + "The numbers are not comparable in size; what can be compared is the order of the methods."


def _beside(results: Results, row: PaperRow, ours: Row | None, names: list[str]) -> dict[str, Any]:
    values = {}
    for name in names:
        here, there = None if ours is None else ours.values.get(name), row.values.get(name)
        places, spread = results.digits.get(name, 2), None if here is None else here.spread
        texts = {"paper": None if there is None else written(name, there, places)}
        texts["ours"] = None if here is None else written(name, here.mean, places)
        values[name] = texts | {"spread": None if spread is None else written_spread(name, spread, places)}
    return {"label": row.label, "ours": ours and ours.method.label, "point": row.point, "values": values}


def _agreement(pairs: list[tuple[PaperRow, Row | None]], name: str) -> str | None:
    """How many pairs of methods are here in the order that they have in the paper; ties have none."""
    both = [(row, ours) for row, ours in pairs if ours is not None and name in row.values and name in ours.values]
    found = [(row.point, row.values[name], ours.values[name].mean) for row, ours in both]
    compared = [(a, b) for a, b in combinations(found, 2) if a[0] == b[0] and a[1] != b[1] and a[2] != b[2]]
    if not compared:
        return None
    same = sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in compared)
    of = "the one pair" if len(compared) == 1 else f"{len(compared)} pairs"
    verb = "is" if same == 1 else "are"
    return f"In {plain_label(name)}, {same} of {of} of methods {verb} in the same order here as in the paper."
