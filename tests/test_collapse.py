"""benchmarks/collapse.py on random images: what a run measures, and that it survives an interruption."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CODES = 32


@pytest.fixture
def one_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module of a single run, with images where it keeps them and without metrics that need weights."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import collapse_cell

    monkeypatch.setattr(collapse_cell, "METRICS", ("psnr",))
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        images = random.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
        np.save(tmp_path / f"images-random-{split}-32.npy", images)
    return collapse_cell


def cell(one_run: ModuleType, method: str, **settings: Any) -> Any:
    return one_run.Cell("test", method, "random", CODES, 8, batch_size=2, **settings)


@pytest.mark.parametrize("method", ["ns_vq", "ns_vq_gumbel", "trans_vq", "trans_vq_mlp", "ema_replace", "none"])
def test_an_interrupted_run_ends_as_a_whole_one(
    one_run: ModuleType, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cell(one_run, method, steps=6, warm_up=2)
    whole = one_run.run_cell(run, tmp_path)
    drawn: list[int] = []

    def draw_until(stop: int) -> Any:
        def draw(*arguments: Any) -> torch.Tensor:
            drawn.append(1)
            if len(drawn) == stop:
                raise KeyboardInterrupt
            return original(*arguments)

        return draw

    original = one_run.draw
    monkeypatch.setattr(one_run, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(one_run, "draw", draw_until(5))
    with pytest.raises(KeyboardInterrupt):
        one_run.run_cell(run, tmp_path)
    drawn.clear()
    monkeypatch.setattr(one_run, "draw", draw_until(-1))
    resumed = one_run.run_cell(run, tmp_path)
    assert len(drawn) == 4
    for part in ("values", "history", "readings", "principal_spread"):
        assert resumed[part] == whole[part]


def test_usage_is_read_with_frozen_weights_over_enough_latents(one_run: ModuleType, tmp_path: Path) -> None:
    run = cell(one_run, "ns_vq", steps=1)
    train, val = (one_run.load_images(run, split, tmp_path) for split in ("train", "val"))
    model = one_run.build(run, one_run.METHODS[run.method])
    one_run.forward(model, one_run.draw(train, 2, torch.Generator().manual_seed(0)), 1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = one_run.usage(model, run, train, val)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found["images"] == "val, mirrored val"
    assert found["latents_per_code"] == 2 * 20 * 64 / CODES
    model.eval()
    images = one_run.network_input(torch.cat([val, val.flip(3)]))
    indices = model.quantizer(model.encoder(images)).indices.detach().numpy()
    share = np.bincount(indices.ravel(), minlength=CODES) / indices.size
    assert found["usage"] == pytest.approx((share > 0).mean())
    assert found["perplexity"] == pytest.approx(np.exp(-(share[share > 0] * np.log(share[share > 0])).sum()))


def test_every_run_of_every_group_names_a_method_that_trains(one_run: ModuleType, tmp_path: Path) -> None:
    import collapse

    cells = [one for group in collapse.GROUPS.values() for one in group("random")]
    train = one_run.load_images(cell(one_run, "none"), "train", tmp_path)
    for method in {one.method for one in cells}:
        model = one_run.build(cell(one_run, method), one_run.METHODS[method])
        images = one_run.draw(train, 2, torch.Generator().manual_seed(0))
        rebuilt, loss, _ = one_run.forward(model, images, 1.0)
        assert rebuilt.shape == images.shape
        assert loss.isfinite()
