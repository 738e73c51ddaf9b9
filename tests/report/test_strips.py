import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio

from driftvq.report import aggregate, load_comparison
from driftvq.report.results import Results
from driftvq.report.strips import gather_strips

PLENTY = 10**8


@pytest.fixture(scope="module")
def results(plain_source: Path) -> Results:
    return aggregate(load_comparison(plain_source))


def decoded(uri: str) -> Image.Image:
    kind, data = uri.split(";base64,")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.format is not None
    assert kind == f"data:image/{image.format.lower()}"
    return image


def test_files_are_embedded_as_they_are(results: Results, plain_source: Path) -> None:
    strips = gather_strips(results, PLENTY)
    assert strips is not None
    assert strips["names"] == ["00.png", "01.png", "02.png"]
    assert strips["note"] == ""
    assert len(strips["rows"]) == 8
    data = base64.b64decode(strips["originals"][1].split(",")[1])
    assert data == (plain_source / "originals" / "01.png").read_bytes()


def test_psnr_is_that_of_scikit_image(results: Results, plain_source: Path) -> None:
    strips = gather_strips(results, PLENTY)
    assert strips is not None
    row = next(row for row in strips["rows"] if results.comparison.methods[row["method"]].name == "vq")
    for name, psnr in zip(strips["names"], row["psnr"], strict=True):
        original = np.asarray(Image.open(plain_source / "originals" / name))
        folder = plain_source / "cells" / "vq--None--seed0" / "reconstructions"
        expected = peak_signal_noise_ratio(original, np.asarray(Image.open(folder / name)), data_range=255)
        assert psnr == pytest.approx(expected, abs=0.006)


def test_a_small_budget_is_kept_and_said(results: Results) -> None:
    full = gather_strips(results, PLENTY)
    assert full is not None
    budget = 20_000
    strips = gather_strips(results, budget)
    assert strips is not None
    uris = strips["originals"] + [uri for row in strips["rows"] for uri in row["images"]]
    assert sum(map(len, uris)) <= budget < sum(len(uri) for row in full["rows"] for uri in row["images"])
    assert "embedded as WebP" in strips["note"]
    assert {decoded(uri).format for uri in uris} == {"WEBP"}
    assert gather_strips(results, 100) is None


def test_what_is_no_image_is_left_out(plain: Path) -> None:
    (plain / "originals" / "00.png").write_text("<script>alert(1)</script>")
    (plain / "cells" / "sim_vq--None--seed0" / "reconstructions" / "02.png").unlink()
    (plain / "cells" / "vq--None--seed0" / "reconstructions" / "01.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    strips = gather_strips(aggregate(load_comparison(plain)), PLENTY)
    assert strips is not None
    assert strips["names"] == ["01.png", "02.png"]
    by_name = {row["method"]: row for row in strips["rows"]}
    names = [method.name for method in load_comparison(plain).methods]
    assert by_name[names.index("sim_vq")]["images"][1] is None
    assert by_name[names.index("vq")]["psnr"][0] is None
