import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from driftvq.drift_meter import DriftReading
from driftvq.records.codec import write_record
from driftvq.records.comparisons import Codes, update_cell
from driftvq.records.metric_table import DRIFT, decimals, metric, written, written_spread
from driftvq.report import aggregate, load_comparison, results_table, write_report
from driftvq.report import page as page_module
from driftvq.report.drawings import first_reach, gather_codes, gather_curves, thinned, times_to_level
from driftvq.report.page import comparison_payload, embed_json, render
from driftvq.report.words import gather_paper
from driftvq.training.logs import COUNTED_ELSEWHERE
from tests.report.synthetic import write_comparison


def test_curves_are_means_over_seeds(plain_source: Path) -> None:
    training = gather_curves(aggregate(load_comparison(plain_source)))
    keys = [chart["key"] for chart in training["charts"]]
    assert keys[:4] == ["train/usage", "val/usage", "val/psnr", "drift/latents_moved"]
    first = [chart["key"] for chart in training["charts"] if chart.get("first")]
    assert first[-2:] == ["quantizer/drift_followed", "quantizer/relocated"]
    assert keys[-1] == "drift/wobble <i>"
    curve = next(c for c in training["curves"] if keys[c["chart"]] == "val/psnr" and c["method"] == 6)
    steps = training["steps"][curve["steps"]]
    seeds = []
    for seed in (0, 1):
        text = (plain_source / "cells" / f"sim_vq--None--seed{seed}" / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()[:-1]]
        seeds.append([line["val/psnr"] for line in lines if "val/psnr" in line])
    np.testing.assert_allclose(curve["mean"], np.mean(seeds, axis=0), rtol=1e-3)
    np.testing.assert_allclose(curve["low"], np.min(seeds, axis=0), rtol=1e-3)
    assert steps == list(range(0, 2001, 50))


def test_usage_says_where_it_still_counts_the_start(plain: Path) -> None:
    where = [chart["where"] for chart in gather_curves(aggregate(load_comparison(plain)))["charts"][:1]]
    for path in plain.glob("cells/*/metrics.jsonl"):
        path.write_text("".join(json.dumps({"step": step, "train/usage": 1.0}) + "\n" for step in (1, 50, 100)))
    where += [chart["where"] for chart in gather_curves(aggregate(load_comparison(plain)))["charts"][:1]]
    assert "after 100 steps only" not in where[0]
    assert "after 100 steps only" in where[1]


def test_long_curves_are_thinned(plain: Path) -> None:
    path = plain / "cells" / "sim_vq--None--seed0" / "metrics.jsonl"
    path.write_text("\n".join(json.dumps({"step": step, "val/psnr": step / 100}) for step in range(5000)))
    training = gather_curves(aggregate(load_comparison(plain)))
    longest = max(training["steps"], key=len)
    assert 250 <= len(longest) <= 300
    assert (longest[0], longest[-1]) == (0, 4999)


@pytest.mark.parametrize(("n", "limit"), [(0, 5), (1, 5), (5, 5), (6, 5), (1000, 7)])
def test_thinning_keeps_the_ends(n: int, limit: int) -> None:
    places = thinned(n, limit)
    assert len(places) == min(n, limit)
    assert places == sorted(set(places))
    if n:
        assert (places[0], places[-1]) == (0, n - 1)


def test_code_use_is_sorted_and_complete(sweep_source: Path) -> None:
    results = aggregate(load_comparison(sweep_source))
    drawn = gather_codes(results)
    assert len(drawn) == 21
    for codes in drawn:
        name = results.comparison.methods[codes["method"]].name
        row = next(row for row in results.rows if (row.method.name, row.point) == (name, codes["point"]))
        counts = np.array(json.loads((row.done[0].folder / "codes.json").read_text())["counts"])
        assert codes["size"] == len(counts) == codes["point"]
        assert codes["alive"] == np.count_nonzero(counts)
        assert codes["perplexity"] == pytest.approx(np.exp(stats.entropy(counts)), abs=0.06)
        assert codes["counts"] == np.sort(counts)[::-1][codes["ranks"]].tolist()
        assert len(codes["ranks"]) <= 203
        dead = np.array(codes["map"]["dead"]).reshape(-1, 3)
        places = len(codes["map"]["alive"]) // 2 + dead[:, 2].sum()
        assert places == codes["map"]["shown"] == min(2000, len(counts))
        assert all(0 <= number <= 1000 for number in codes["map"]["alive"] + dead[:, :2].flatten().tolist())


@pytest.mark.parametrize(
    "codes", ["", "[]", '{"counts": "x"}', '{"counts": [1, 2], "points": [[1]], "latents": 3}', '{"counts": []}']
)
def test_damaged_codes_leave_the_page_whole(plain: Path, codes: str) -> None:
    (plain / "cells" / "sim_vq--None--seed0" / "codes.json").write_text(codes)
    assert len(gather_codes(aggregate(load_comparison(plain)))) == 7


def test_the_paper_is_beside_ours(plain_source: Path) -> None:
    results = aggregate(load_comparison(plain_source))
    paper = gather_paper(results)
    assert paper is not None
    assert "CelebA-HQ 256×256" in paper["difference"]
    assert "at laptop scale: embedded photographs, 1152 training images" in paper["difference"]
    assert "not comparable in size" in paper["difference"]
    row = next(row for row in results.rows if row.method.name == "vq")
    assert paper["rows"][2]["values"]["rfid"]["paper"] == "55.10"
    assert paper["rows"][2]["values"]["rfid"]["ours"] == f"{row.values['rfid'].mean:.2f}"
    ours = [
        next(r for r in results.rows if r.method.name == name).values["rfid"].mean
        for name in ("ns_vq_paper", "trans_vq_mlp_paper", "vq", "sim_vq")
    ]
    theirs = [21.3, 20.9, 55.1, 24.8]
    same = sum((theirs[i] < theirs[j]) == (ours[i] < ours[j]) for i in range(4) for j in range(i))
    assert paper["agreement"][0] == f"In rFID, {same} of 6 pairs of methods are in the same order here as in the paper."


def test_what_usage_was_counted_over_is_said_on_the_page_and_below_the_table(plain: Path) -> None:
    over = "52 latents per code (held-out images <b>)"
    update_cell(plain / "cells" / "sim_vq--None--seed0", usage_over=over)
    results = aggregate(load_comparison(plain))
    assert f"Usage and perplexity over {over}." in comparison_payload(results, 0)["notes"]
    assert r"Usage and perplexity over 52 latents per code (held-out images \<b\>)." in results_table(results)


def test_values_are_written_for_readers() -> None:
    assert decimals("kid", [0.0213, 0.05, 0.03]) == 4
    assert decimals("psnr", [0.0213]) == 2
    assert decimals("new", []) == 2
    assert written("usage", 0.12345, 1) == "12.3%"
    assert written_spread("kid", 0.00003, 4) == "0.00003"
    assert written_spread("kid", 1e-12, 4) == "0.0000"
    assert metric("lpips_squeeze").better == "lower"
    assert metric("anything").better is None


def test_every_reading_that_is_logged_has_plain_words() -> None:
    assert set(DRIFT) == set(DriftReading().to_dict()) - set(COUNTED_ELSEWHERE)


def test_dead_codes_that_lie_together_share_a_cross(plain: Path) -> None:
    places = ((0.0, 0.0), (10.0, 0.0), *((0.001 * i, 10.0) for i in range(7)), (10.0, 10.0))
    counts = (5, 0, *[0] * 7, 0)
    codes = Codes(counts, points=places, point_codes=tuple(range(len(places))), latents=((5.0, 5.0),))
    write_record(plain / "cells" / "vq--None--seed0" / "codes.json", codes)
    drawn = next(d for d in gather_codes(aggregate(load_comparison(plain))) if d["method"] == 4)
    dead = sorted(map(tuple, np.array(drawn["map"]["dead"]).reshape(-1, 3).tolist()))
    assert dead == [(0, 1000, 7), (1000, 0, 1), (1000, 1000, 1)]


def test_what_few_images_select_stands_beside_k_means(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "c", sweep=None, seeds=(0,), images=1, size=16, kmeans=True)
    results = aggregate(load_comparison(folder))
    drawn = {results.comparison.methods[d["method"]].name: d for d in gather_codes(results)}
    cells = {row.method.name: row.done[0] for row in results.rows if row.done}
    assert drawn["sim_vq"]["selected"] == cells["sim_vq"].values["selected"]
    assert drawn["sim_vq"]["images"] == 256
    kmeans = cells["kmeans_afterwards"].values["selected"]
    assert drawn["sim_vq"]["reference"] == {"label": "No quantizer, k-means afterwards", "selected": kmeans}
    assert drawn["kmeans_afterwards"]["reference"] is None


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--", "a & b", "\u2028\u2029", '"\\', "ü€"])
def test_embedded_json_ends_nothing(text: str) -> None:
    embedded = embed_json({"text": text, "bad": math.nan})
    assert not set(embedded) & set("<>&\u2028\u2029")
    assert json.loads(embedded) == {"text": text, "bad": None}


def test_the_page_shrinks_to_its_limit(plain_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = aggregate(load_comparison(plain_source))
    full = len(render([results]))
    images = sum(len(uri) for row in strips_of(results)["rows"] for uri in row["images"])
    assert images > 60_000
    monkeypatch.setattr(page_module, "MAX_BYTES", full - images // 2)
    monkeypatch.setattr(page_module, "IMAGE_BYTES", 520_000)
    text = render([results])
    assert len(text.encode()) < full - images // 2


def strips_of(results: Any) -> dict[str, Any]:
    strips: dict[str, Any] = comparison_payload(results, 10**7)["strips"]
    return strips


def test_a_failed_write_leaves_the_old_page(plain: Path, tmp_path: Path) -> None:
    page = write_report(plain)
    assert page == plain / "report.html"
    before = page.read_text()
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_report(plain, tmp_path / "no" / "page.html")
    (plain / "comparison.json").write_text("{}")
    with pytest.raises(ValueError, match=r"comparison\.json"):
        write_report(plain)
    assert page.read_text() == before
    with pytest.raises(ValueError, match="at least one folder"):
        write_report([])


def test_no_torch_is_needed() -> None:
    code = "import sys, driftvq.report, driftvq.cli.report; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_step_at_which_a_level_is_reached_lies_between_two_validations() -> None:
    curve = {0: 10.0, 100: 20.0, 200: 18.0, 300: 26.0}
    assert first_reach(curve, 10.0) == 0
    assert first_reach(curve, 15.0) == 50
    assert first_reach(curve, 20.0) == 100
    assert first_reach(curve, 22.0) == 250
    assert first_reach(curve, 26.1) is None


def test_every_method_is_timed_to_where_half_of_them_end(plain: Path) -> None:
    results = aggregate(load_comparison(plain))
    rows = [row for row in results.rows if row.competes]
    ends = {row.method.name: 20.0 + place for place, row in enumerate(rows)}
    for row in results.rows:
        for cell in row.cells:
            lines = [{"step": 0, "val/psnr": 10.0}, {"step": 100, "val/psnr": ends.get(row.method.name, 12.0)}]
            (cell.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
            update_cell(cell.folder, ms_per_step=20.0)
    found = times_to_level(aggregate(load_comparison(plain)))
    level = 20.0 + len(ends) // 2
    for name, end in ends.items():
        time = 2.0 * (level - 10) / (end - 10) if end >= level else None
        assert found[name, None] == (level, time if time is None else pytest.approx(time))
    references = {found[row.method.name, None].seconds for row in results.rows if row.done and not row.competes}
    assert references == {None}


def test_the_method_in_the_middle_reaches_its_own_level_with_two_seeds(plain: Path) -> None:
    """Its level is a mean, which its weaker seed never has."""
    results = aggregate(load_comparison(plain))
    names = [row.method.name for row in results.rows if row.competes]
    for row in results.rows:
        for place, cell in enumerate(row.cells):
            end = 20.0 + (names.index(row.method.name) if row.method.name in names else 0) + (0.2, -0.2, 0.0)[place % 3]
            lines = [{"step": 0, "val/psnr": 10.0}, {"step": 100, "val/psnr": end}]
            (cell.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
            update_cell(cell.folder, ms_per_step=20.0)
    found = times_to_level(aggregate(load_comparison(plain)))
    middle = found[names[len(names) // 2], None]
    assert middle.seconds == pytest.approx(2.0)
