import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from driftvq.drift_meter import DriftReading
from driftvq.inspection import give_verdict
from driftvq.records.comparisons import Cell, Comparison, Method, Point, Sweep, update_cell
from driftvq.report import aggregate, answer, load_comparison
from driftvq.report.results import covers
from driftvq.report.words import ONE_SEED, scale_difference


def make(
    values: dict[str, list[float]], folder: Path, groups: dict[str, str] | None = None, **cell: object
) -> Comparison:
    """A comparison of the KID of a few methods, one value for each seed."""
    groups = groups or {}
    methods = tuple(
        Method(name, name.upper(), groups.get(name, "ours" if i == 0 else "peer")) for i, name in enumerate(values)
    )
    known: dict[str, object] = {"codebook_size": 64, **cell}
    cells = tuple(
        Cell(folder, name, None, seed, "done", values={"kid": kid}, **known)  # type: ignore[arg-type]
        for name, kids in values.items()
        for seed, kid in enumerate(kids)
    )
    seeds = tuple(range(max(len(kids) for kids in values.values())))
    return Comparison(
        folder, "n", "compare", "t", "smoke", "q", "c", "now", seeds, ("kid",), None, methods, (), cells=cells
    )


def test_mean_and_spread_are_those_of_numpy(sweep_source: Path) -> None:
    results = aggregate(load_comparison(sweep_source))
    assert len(results.rows) == 7 * 3 + 1
    for row in results.rows:
        files = [json.loads((cell.folder / "cell.json").read_text()) for cell in row.done]
        kids = [file["values"]["kid"] for file in files]
        assert row.values["kid"].mean == pytest.approx(np.mean(kids))
        assert row.values["kid"].spread == pytest.approx(np.std(kids, ddof=1))
        assert row.values["kid"].n == len(kids)


def test_what_few_ask_for_is_in_a_table_that_names_it(tmp_path: Path) -> None:
    comparison = make({"a": [1.0], "b": [2.0]}, tmp_path)
    cells = tuple(
        replace(cell, values={**cell.values, "thinnest": 0.1, "bandwidth": 2.0, "mine": 3.0})
        for cell in comparison.cells
    )
    assert aggregate(replace(comparison, cells=cells)).columns == ("kid", "mine")
    assert aggregate(replace(comparison, cells=cells, metrics=("kid", "thinnest"))).columns == (
        "kid",
        "thinnest",
        "mine",
    )


def test_rank_and_test_against_the_best(sweep_source: Path) -> None:
    results = aggregate(load_comparison(sweep_source))
    assert results.lead == "kid"
    for point in (64, 1024, 8192):
        rows = results.ranked(point)
        means = [row.values["kid"].mean for row in rows]
        assert means == sorted(means)
        assert [row.rank for row in rows] == list(range(1, 8))
        assert rows[0].test is None
        best = rows[0].by_seed("kid")
        for row in rows[1:]:
            mine = row.by_seed("kid")
            seeds = sorted(mine)
            expected = stats.ttest_rel([mine[seed] for seed in seeds], [best[seed] for seed in seeds]).pvalue
            assert row.test is not None
            assert row.test.p == pytest.approx(expected)


def test_higher_is_better_where_it_is(sweep_source: Path) -> None:
    comparison = load_comparison(sweep_source)
    results = aggregate(replace(comparison, metrics=("psnr", "kid")))
    assert results.lead == "psnr"
    best = results.ranked(8192)[0]
    assert best.values["psnr"].mean == max(row.values["psnr"].mean for row in results.rows if row.point == 8192)


def test_no_codes_no_rank(sweep_source: Path) -> None:
    results = aggregate(load_comparison(sweep_source))
    plain = next(row for row in results.rows if row.method.name == "none")
    assert plain.values["kid"].mean < results.ranked(8192)[0].values["kid"].mean
    assert plain.rank is None
    assert results.mark(plain, "kid") is None


def test_unknown_metrics_are_kept_without_a_best(sweep_source: Path) -> None:
    results = aggregate(load_comparison(sweep_source))
    assert results.columns == (
        *(
            "kid",
            "usage",
            "lpips_alex",
            "rfid",
            "ssim",
            "psnr",
            "perplexity",
            "selected",
            "relocated",
            "drift_followed",
        ),
        "sharpness <b>",
    )
    assert not any(name == "sharpness <b>" for name, _ in results.best)


def test_within_the_spread(tmp_path: Path) -> None:
    values = {"a": [1.0, 1.2, 1.1], "b": [1.15, 1.25, 1.2], "c": [2.0, 2.1, 2.2]}
    results = aggregate(make(values, tmp_path))
    assert [row.within_spread for row in results.rows] == [None, True, False]
    assert [results.mark(row, "kid") for row in results.rows] == ["best", "within", None]
    assert "within the spread of the 3 seeds" in answer(results).best
    assert "neither wins" in answer(results).best


def test_equal_means_are_both_the_best(tmp_path: Path) -> None:
    results = aggregate(make({"a": [1.0, 2.0], "b": [2.0, 1.0]}, tmp_path))
    assert [results.mark(row, "kid") for row in results.rows] == ["best", "best"]
    written = aggregate(make({"a": [1.0], "b": [1.001], "c": [1.02]}, tmp_path))
    assert [written.mark(row, "kid") for row in written.rows] == ["best", "best", None]


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    results = aggregate(make({"a": [1.0], "b": [2.0]}, tmp_path))
    assert results.rows[1].within_spread is None
    assert results.rows[1].test is not None
    assert results.rows[1].test.p is None
    assert answer(results).best == (
        "A has the lowest KID, 1.00, 50% lower than the best trained peer, B (2.00). One seed tells who collapses, not "
        "who wins by a little: there is no spread to compare the difference with."
    )


def test_a_missing_seed_does_not_win(tmp_path: Path) -> None:
    """The one seed that A has is an easy one; on it B is better."""
    results = aggregate(make({"a": [1.0], "b": [0.9, 3.0]}, tmp_path))
    assert [row.rank for row in results.rows] == [2, 1]
    text = answer(results).best
    assert text.startswith(
        "B has the lowest KID, 1.95 ± 1.48, 10% lower than the best of the paper's methods and ours, A"
    )
    assert "by the one seed that both have" in text
    assert text.endswith(ONE_SEED)


def test_a_tie_has_no_sole_winner(tmp_path: Path) -> None:
    text = answer(aggregate(make({"a": [0.1], "b": [0.1]}, tmp_path))).best
    assert text.startswith("A has the lowest KID, 0.100, as has the best trained peer, B (0.100).")
    close = answer(aggregate(make({"a": [0.1], "b": [0.1001]}, tmp_path))).best
    assert "less than 1% lower than" in close


def test_a_winner_among_peers_alone_is_held_against_the_next(tmp_path: Path) -> None:
    groups = {"a": "peer", "b": "peer"}
    text = answer(aggregate(make({"a": [1.0, 1.2, 1.1], "b": [1.15, 1.25, 1.2]}, tmp_path, groups))).best
    assert "but the next, B (1.20 ± 0.05) is within the spread of the 3 seeds" in text


def test_a_collapse_of_one_seed_is_told(tmp_path: Path) -> None:
    comparison = make({"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, 2.0]}, tmp_path)
    used = {("b", 2): 0.05}
    cells = [replace(c, values=c.values | {"usage": used.get((c.method, c.seed), 1.0)}) for c in comparison.cells]
    found = answer(aggregate(replace(comparison, cells=tuple(cells))))
    assert found.collapsed == "Collapsed: B (seed 2: 5.0% of the codes used)."


def test_references_alone_are_a_result(tmp_path: Path) -> None:
    found = answer(aggregate(make({"a": [1.0], "b": [2.0]}, tmp_path, {"a": "reference", "b": "reference"})))
    assert found.best == "Nothing here is ranked."
    assert found.references == "As a yardstick, not ranked: A: 1.00 and B: 2.00."


@pytest.mark.parametrize(
    ("point", "place", "found"),
    [(None, 64, True), (64, 64, True), (64, 1024, False), ("D 64", "K 64, D 64", True), ("D 3", "K 64, D 64", False)],
)
def test_a_yardstick_belongs_to_every_place_that_agrees_with_it(point: Point, place: Point, found: bool) -> None:
    assert covers(point, place) is found


def test_the_answer_says_how_sure_it_is(tmp_path: Path) -> None:
    sure = answer(aggregate(make({"a": [1.0, 1.01, 1.02], "b": [2.0, 2.01, 2.03]}, tmp_path))).best
    assert sure.startswith(
        "A has the lowest KID, 1.01 ± 0.01, 50% lower than the best trained peer, B (2.01 ± 0.02): more than"
    )
    assert "the spread of the 3 seeds (paired test: p < 0.001)" in sure
    unsure = answer(aggregate(make({"a": [1.0, 1.1], "b": [1.2, 1.5]}, tmp_path))).best
    assert "more than the spread, but 2 seeds cannot rule out chance (paired test: p = 0.20)" in unsure


def test_a_peer_can_win(tmp_path: Path) -> None:
    text = answer(aggregate(make({"a": [2.0, 2.1], "b": [1.0, 1.1]}, tmp_path))).best
    assert text.startswith(
        "B has the lowest KID, 1.05 ± 0.07, 49% lower than the best of the paper's methods and ours, A (2.05"
    )
    alone = answer(aggregate(make({"a": [2.0, 2.1]}, tmp_path))).best
    assert alone.endswith("no other method has a result to compare with.")


def test_negative_kid_gets_no_percentage(tmp_path: Path) -> None:
    assert "%" not in answer(aggregate(make({"a": [-0.001, -0.002], "b": [0.1, 0.2]}, tmp_path))).best


def test_the_sweep_is_told_in_the_answer(sweep_source: Path) -> None:
    comparison = load_comparison(sweep_source)
    best, collapsed, references, progress = answer(aggregate(comparison))
    assert best.startswith(
        "NS-VQ (driftvq default) has the lowest KID at every codebook size K from 64 to 8192; at 8192 it has"
    )
    assert "vanilla VQ <script>alert(1)</script>" in collapsed
    assert "at 1024" in collapsed
    assert references.startswith("As a yardstick, not ranked: plain autoencoder: 0.0")
    assert progress == "So far 64 of 66 cells are done, 1 failed, 1 running."
    others = [cell for cell in comparison.cells if (cell.method, cell.point) not in {("ns_vq", 64), ("trans_vq", 64)}]
    mixed = answer(aggregate(replace(comparison, cells=tuple(others)))).best
    assert mixed.startswith(
        "By codebook size K, NS-VQ (driftvq default) has the lowest KID at 1024 and 8192, NS-VQ at 64; at 8192 NS-VQ"
    )


def test_conditions_are_counted_not_spanned(tmp_path: Path) -> None:
    points = ("K 64, D 3", "lr 0.005")
    first, second = (make({"a": [1.0], "b": [2.0]}, tmp_path) for _ in points)
    cells = [
        replace(cell, point=point) for one, point in ((first, points[0]), (second, points[1])) for cell in one.cells
    ]
    comparison = replace(first, cells=tuple(cells), sweep=Sweep("condition", points, "condition"))
    text = answer(aggregate(comparison)).best
    assert text.startswith("A has the lowest KID under all 2 conditions; at lr 0.005 it has 1.00, 50% lower than")


def test_an_ablation_of_ours_is_no_rival(tmp_path: Path) -> None:
    text = answer(aggregate(make({"a": [1.0], "b": [1.5], "c": [2.0]}, tmp_path, {"b": "ablation"}))).best
    assert "50% lower than the best trained peer, C (2.00)" in text


def test_a_reference_with_codes_neither_wins_nor_is_a_peer(tmp_path: Path) -> None:
    values = {"a": [2.0, 2.1], "b": [3.0, 3.3], "c": [1.0, 1.1]}
    results = aggregate(make(values, tmp_path, {"c": "reference"}))
    said = answer(results)
    assert said.best.startswith("A has the lowest KID, 2.05 ± 0.07, 35% lower than the best trained peer, B (3.15")
    assert said.references == "As a yardstick, not ranked: C: 1.05 ± 0.07."
    assert [row.rank for row in results.rows] == [1, 2, None]
    assert [results.mark(row, "kid") for row in results.rows] == ["best", None, None]


def test_few_latents_are_no_collapse(plain: Path) -> None:
    """With fewer latents than codes most codes cannot be selected."""

    def state() -> str | None:
        return next(row for row in aggregate(load_comparison(plain)).rows if row.method.name == "vq").state

    assert state() == "collapsed"
    for seed in (0, 1):
        update_cell(plain / "cells" / f"vq--None--seed{seed}", usage_latents=60)
    assert state() == "alive"


@pytest.mark.parametrize(
    ("usage", "state"), [(0.199, "collapsed"), (0.2, "partly used"), (0.799, "partly used"), (0.8, "alive")]
)
def test_one_definition_of_collapsed_for_report_meter_and_inspect(tmp_path: Path, usage: float, state: str) -> None:
    cell = make({"a": [1.0]}, tmp_path).cells[0]
    comparison = replace(make({"a": [1.0]}, tmp_path), cells=(replace(cell, values={"kid": 1.0, "usage": usage}),))
    assert aggregate(comparison).rows[0].state == state
    assert DriftReading(latent_spread=1.0, recent_usage=usage).verdict().startswith(f"{state}:")
    codebook = {"recent_usage": usage, "training_steps": 900, "kmeans_start": None}
    assert give_verdict({"model": {}, "codebook": codebook})["state"] == state


def test_nothing_done_yet(plain: Path) -> None:
    shutil.rmtree(plain / "cells")
    text = str(answer(aggregate(load_comparison(plain))))
    assert text == "There is no result yet. So far 0 of 16 cells are done, 16 waiting."


def test_the_lead_is_the_first_metric_that_was_measured(plain: Path) -> None:
    for path in plain.glob("cells/*/cell.json"):
        cell = json.loads(path.read_text())
        cell["values"].pop("kid", None)
        path.write_text(json.dumps(cell))
    results = aggregate(load_comparison(plain))
    assert results.lead == "lpips_alex"
    assert "the lowest LPIPS" in answer(results).best


@pytest.mark.parametrize("name", ["steps", "size", "batch_size", "code_dim", "codebook_size", "evaluation"])
def test_changed_settings_are_not_the_papers(name: str, tmp_path: Path) -> None:
    comparison = replace(make({"a": [1.0]}, tmp_path), scale="paper", config={"code_dim": 3})
    theirs = scale_difference(replace(comparison, request={"scale": "paper", name: None}))
    changed = scale_difference(replace(comparison, request={"scale": "paper", name: 2}))
    assert "The settings are the paper's" in theirs
    assert "The settings are the paper's" not in changed
    assert "code dimension 3" in changed
