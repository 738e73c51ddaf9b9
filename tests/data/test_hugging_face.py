import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driftvq.data import BadImageError, eval_batches, open_source, train_batches
from tests.data.files import encoded, fill

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def table(count: int, first: int = 0) -> Any:
    rows = [
        {"bytes": encoded(np.full((8, 8, 3), number, np.uint8)), "path": None} for number in range(first, first + count)
    ]
    features = datasets.Features({"label": datasets.Value("int64"), "photo": datasets.Image()})
    return datasets.Dataset.from_dict({"label": list(range(count)), "photo": rows}, features=features)


def colours(source: Any) -> list[int]:
    return [int(source.read(index)[0, 0, 0]) for index in range(len(source))]


def test_a_saved_table(tmp_path: Path) -> None:
    table(30).save_to_disk(str(tmp_path / "saved"))
    spec = f"hf:{tmp_path / 'saved'}"
    assert colours(open_source(spec, "all")) == list(range(30))
    train, val = open_source(spec, "train", val_share=0.3), open_source(spec, "val", val_share=0.3)
    assert sorted(colours(train) + colours(val)) == list(range(30))
    assert train.name(0).startswith("all-0000000")


def test_a_saved_dictionary_with_splits(tmp_path: Path) -> None:
    tables = datasets.DatasetDict({"train": table(5), "test": table(2, 50), "validation": table(3, 70)})
    tables.save_to_disk(str(tmp_path / "saved"))
    spec = f"hf:{tmp_path / 'saved'}"
    assert colours(open_source(spec, "train")) == [0, 1, 2, 3, 4]
    assert colours(open_source(spec, "val")) == [70, 71, 72]
    assert colours(open_source(f"{spec}:test", "all")) == [50, 51]
    assert len(open_source(spec, "all")) == 10
    both = [colours(open_source(f"{spec}:train", split, val_share=0.4)) for split in ("train", "val")]
    assert sorted(both[0] + both[1]) == [0, 1, 2, 3, 4]
    assert open_source(f"{spec}:test", "all").name(1) == "test-00000001"
    with pytest.raises(ValueError, match=r"unknown split of the dataset 'tset'; known, nearest first: test, "):
        open_source(f"{spec}:tset")


def test_parquet_and_image_folders(tmp_path: Path) -> None:
    (tmp_path / "parquet").mkdir()
    table(4).to_parquet(str(tmp_path / "parquet" / "train.parquet"))
    assert colours(open_source(f"hf:{tmp_path / 'parquet'}", "all")) == [0, 1, 2, 3]
    fill(tmp_path / "folder", 3)
    assert colours(open_source(f"hf:{tmp_path / 'folder'}", "all")) == [0, 1, 2]


def test_batches_with_a_damaged_row(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image()})
    good = encoded(np.full((8, 8, 3), 9, np.uint8))
    rows = [{"bytes": data, "path": None} for data in (good, good[:40], b"")] + [None, {"bytes": good, "path": None}]
    datasets.Dataset.from_dict({"image": rows}, features=features).save_to_disk(str(tmp_path / "saved"))
    source = open_source(f"hf:{tmp_path / 'saved'}", "all")
    with pytest.raises(BadImageError, match="no image"):
        source.read(3)
    (batch,) = eval_batches(source, size=8, batch_size=8, workers=1)
    assert batch.names == ["all-00000000", "all-00000004"]
    assert [name for name, _ in batch.skipped] == ["all-00000001", "all-00000002", "all-00000003"]
    with train_batches(source, size=8, batch_size=5, seed=0, workers=1) as batches:
        assert (next(iter(batches)).images == 9).all()


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.Dataset.from_dict({"text": ["a"], "label": [1]}).save_to_disk(str(tmp_path / "text"))
    with pytest.raises(ValueError, match=r"no image column in the dataset .*; its columns: text, label"):
        open_source(f"hf:{tmp_path / 'text'}", "all")
    with pytest.raises(ValueError, match=r"no such directory: /nowhere/at/all"):
        open_source("hf:/nowhere/at/all")
    with pytest.raises(ValueError, match="hf: needs the name"):
        open_source("hf:")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install .datasets>="):
        open_source("hf:some/name")


def test_a_failure_to_load_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def offline(name: str, **_: object) -> None:
        asked.append(name)
        raise ConnectionError("cannot reach the hub\n(offline)")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ValueError, match=r"cannot load .* 'some/name': cannot reach the hub \(offline\)$"):
        open_source("hf:some/name:train")
    assert asked == ["some/name"]
