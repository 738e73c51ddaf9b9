import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from driftvq.records.comparisons import update_cell
from driftvq.records.metric_table import DRIFT, decimals, metric, written, written_spread
from driftvq.report import aggregate, load_comparison, results_table, write_report
from driftvq.report import page as page_module
from driftvq.report.drawings import gather_codes, gather_curves, thinned
from driftvq.report.page import comparison_payload, embed_json, render
from driftvq.report.words import gather_paper


def test_curves_are_means_over_seeds(plain_source: Path) -> None:
    training = gather_curves(aggregate(load_comparison(plain_source)))
    keys = [chart["key"] for chart in training["charts"]]
    assert keys[:3] == ["val/usage", "val/psnr", "drift/latents_moved"]
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
        places = len(codes["map"]["alive"]) // 2 + len(codes["map"]["dead"]) // 2
        assert places == codes["map"]["shown"] == min(2000, len(counts))
        assert all(0 <= number <= 1000 for number in codes["map"]["alive"] + codes["map"]["dead"])


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
    assert comparison_payload(results, 0)["notes"][-1] == f"Usage and perplexity over {over}."
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


def test_every_reading_of_the_drift_meter_has_plain_words() -> None:
    drift = pytest.importorskip("driftvq.drift_meter")
    assert set(DRIFT) == set(drift.DriftReading().to_dict())


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
