"""The rules by which the study decides a claim of the paper."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from driftvq.records.comparisons import Cell

ROOT = Path(__file__).parents[1]


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import verdicts

    return verdicts


def cell(
    method: str, codes: int | None, dim: int, seed: int = 0, batch: int = 16, steps: int = 100, **values: Any
) -> Cell:
    ms = values.pop("ms", None)
    config = {"batch_size": batch}
    place = {"codebook_size": codes, "code_dim": dim, "config": config, "steps": steps, "ms_per_step": ms}
    return Cell(Path("x"), method, codes, seed, "done", values=values, **place)


def of(verdicts: ModuleType, cells: list[Cell], sentence: str, form: str) -> tuple[str, str]:
    (found,) = [row[2:] for row in verdicts.verdicts(cells) if row[:2] == (sentence, form)]
    return found


def test_one_seed_tells_three_percent_and_several_their_spread(verdicts: ModuleType) -> None:
    assert verdicts.lower([100.0], [103.5]) is True
    assert verdicts.lower([103.5], [100.0]) is False
    assert verdicts.lower([100.0], [102.5]) is None
    assert verdicts.lower([100.0, 100.2], [101.0, 101.2]) is True
    assert verdicts.lower([100.0, 103.0], [102.0, 102.2]) is None


def test_a_claim_is_open_while_missing_cells_can_decide_it(verdicts: ModuleType) -> None:
    assert verdicts.word([True] * 5, 5, 1) == "holds"
    assert verdicts.word([True] * 4 + [False], 5, 1) == "open"
    assert verdicts.word([True] * 4 + [False], 5, 0) == "does not hold"
    assert verdicts.word([True] * 4 + [None], 5, 0) == "cannot be told"
    assert verdicts.word([False, False], 5, 4) == "does not hold"


def test_every_code_must_live_at_every_size(verdicts: ModuleType) -> None:
    cells = [cell("ns_vq", codes, dim, usage=0.995, rfid=9.0) for codes in (64, 1024, 8192) for dim in (3, 64)]
    sentence = "NS-VQ uses all codes"
    assert of(verdicts, cells, sentence, "ours")[0] == "holds"
    assert of(verdicts, cells[:5], sentence, "ours")[0] == "open"
    dead = [*cells[:4], cell("ns_vq", 8192, 3, usage=0.98, rfid=9.0)]
    assert of(verdicts, dead, sentence, "ours")[0] == "does not hold"
    assert "K 8192, D 3: 98.0%" in of(verdicts, dead, sentence, "ours")[1]


def test_better_in_five_of_six_cells(verdicts: ModuleType) -> None:
    places = [(codes, dim) for codes in (64, 1024, 8192) for dim in (3, 64)]
    peers = [cell("sim_vq", *place, rfid=20.0) for place in places]
    ours = [
        cell("trans_vq_paper", *place, rfid=rfid) for place, rfid in zip(places, [10, 11, 12, 13, 14, 30], strict=True)
    ]
    sentence = "TransVQ is better than SimVQ"
    word, numbers = of(verdicts, peers + ours, sentence, "as printed")
    assert word == "holds"
    assert "K 8192, D 64: 30.0 against 20.0" in numbers
    assert of(verdicts, peers + ours[1:], sentence, "as printed")[0] == "open"
    seeds = [cell("trans_vq_paper", *places[0], seed=1, rfid=60.0)]  # a second seed of ours alone is no pair of seeds
    assert of(verdicts, peers + ours + seeds, sentence, "as printed")[0] == "does not hold"


def test_batches_are_compared_over_as_many_steps_or_images(verdicts: ModuleType) -> None:
    sizes = (4, 8, 16, 32, 64)
    images = [cell("vq", 64, 64, batch=b, steps=1600 // b, rfid=100 - b) for b in sizes]
    steps = [cell("vq", 64, 64, batch=b, steps=100, rfid=100 + b) for b in sizes if b != 16]
    sentence = "larger batches are better"
    assert of(verdicts, images + steps, sentence, "VQ-VAE, as many images")[0] == "holds"
    word, numbers = of(verdicts, images + steps, sentence, "VQ-VAE, as many steps")
    assert word == "does not hold"
    assert numbers == "batch 4: 104.0, batch 8: 108.0, batch 16: 84.0, batch 32: 132.0, batch 64: 164.0"
    assert of(verdicts, images, sentence, "VQ-VAE, as many steps")[0] == "open"


@pytest.mark.parametrize(
    ("rfid", "ms", "word"), [(21, 60, "holds"), (23, 60, "does not hold"), (21, 90, "does not hold")]
)
def test_the_mlp_has_to_be_close_and_fast(verdicts: ModuleType, rfid: float, ms: float, word: str) -> None:
    cells = [cell("trans_vq_mlp_paper", 1024, 64, rfid=rfid, ms=ms), cell("trans_vq_paper", 1024, 64, rfid=20, ms=130)]
    cells.append(cell("autoencoder", None, 64, rfid=5, ms=30))
    assert of(verdicts, cells, "the MLP is slightly worse and much faster", "as printed")[0] == word


def test_three_of_four_estimators(verdicts: ModuleType) -> None:
    cells = []
    for name in ("ns_vq", "trans_vq_mlp"):
        for codes in (1024, 8192):
            better = (name, codes) != ("ns_vq", 8192)
            cells += [cell(name, codes, 64, rfid=20), cell(f"{name}_modified", codes, 64, rfid=18 if better else 22)]
    assert of(verdicts, cells, "the modified estimator helps", "ours")[0] == "holds"
    assert of(verdicts, cells[:6], "the modified estimator helps", "ours")[0] == "open"
