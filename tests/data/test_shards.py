import pickle
import shutil
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image

from driftvq.data import BadImageError, ImageSource, ShardSource, open_source, train_batches
from driftvq.data.shards import expand_braces
from tests.data.files import encoded, fill


def names(source: ImageSource) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def write_shards(folder: Path, shards: int, samples: int, label: str = "x") -> list[Path]:
    """Shards as users make them, with the webdataset package; the images' colour is the sample's number."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{label}-{number:03d}.tar" for number in range(shards)]
    for number, path in enumerate(paths):
        with webdataset.TarWriter(str(path)) as writer:
            for sample in range(number * samples, (number + 1) * samples):
                png = encoded(np.full((8, 8, 3), sample % 256, np.uint8))
                writer.write({"__key__": f"{sample:04d}", "cls": sample % 3, "png": png, "mask.png": b"not this"})
    return paths


def test_the_same_samples_as_webdataset(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 3, 5)
    source = open_source(tmp_path, "all")
    theirs = list(webdataset.WebDataset([str(path) for path in paths], shardshuffle=False).to_tuple("__key__", "png"))
    assert len(source) == len(theirs) == 15
    for index, (key, data) in enumerate(theirs):
        assert source.name(index).endswith(f"/{key}.png")
        np.testing.assert_array_equal(source.read(index), np.array(Image.open(BytesIO(data))))
    assert names(source)[5] == "x-001.tar/0005.png"
    assert source.problems == []


def test_ways_to_name_shards(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 12, 1)
    assert len(open_source(str(tmp_path / "x-{000..011}.tar"), "all")) == 12
    assert names(open_source(str(tmp_path / "x-{003,010}.tar"), "all")) == ["x-003.tar/0003.png", "x-010.tar/0010.png"]
    assert names(open_source(paths[4], "all")) == ["x-004.tar/0004.png"]
    with pytest.raises(ValueError, match=r"2 of 14 shards of .* do not exist, the first is .*x-012\.tar"):
        open_source(str(tmp_path / "x-{000..013}.tar"))


def test_braces() -> None:
    assert expand_braces("a") == ["a"]
    assert expand_braces("a{8..11}") == ["a8", "a9", "a10", "a11"]
    assert expand_braces("{a,b}-{00..01}") == ["a-00", "a-01", "b-00", "b-01"]
    with pytest.raises(ValueError, match=r"\{3\.\.1\} in x\{3\.\.1\} runs backwards"):
        expand_braces("x{3..1}")
    with pytest.raises(ValueError, match=r"x\{0\.\.999999999999\} names more than 1,000,000 shards"):
        expand_braces("x{0..999999999999}")


def test_splits(tmp_path: Path) -> None:
    write_shards(tmp_path / "own" / "train", 2, 3)
    write_shards(tmp_path / "own" / "val", 1, 2)
    assert [len(open_source(tmp_path / "own", split)) for split in ("train", "val", "all")] == [6, 2, 8]
    write_shards(tmp_path / "none", 3, 20)
    train, val = (names(open_source(tmp_path / "none", split, val_share=0.2)) for split in ("train", "val"))
    assert sorted(train + val) == names(open_source(tmp_path / "none", "all"))
    assert 3 <= len(val) <= 25


@pytest.mark.parametrize("shards", [1, 3, 20])
def test_ranks_and_workers_share_any_number_of_shards_without_gap_or_double(shards: int, tmp_path: Path) -> None:
    write_shards(tmp_path, shards, 24 // shards)
    source = open_source(tmp_path, "all")
    steps = len(source) // 4
    seen = []
    for rank in range(2):
        with train_batches(source, size=8, batch_size=2, seed=0, rank=rank, world_size=2, workers=2) as batches:
            seen += [name for batch, _ in zip(batches, range(steps), strict=False) for name in batch.names]
    assert sorted(seen) == names(source)[: len(seen)] == names(source)


def test_a_resumed_run_reads_the_same_batches(tmp_path: Path) -> None:
    write_shards(tmp_path, 18, 3)
    source = open_source(tmp_path, "train")

    def take(start: int, count: int, workers: int) -> list[list[str]]:
        with train_batches(source, size=8, batch_size=4, seed=1, start_step=start, workers=workers) as batches:
            return [batch.names for batch, _ in zip(batches, range(count), strict=False)]

    whole = take(0, 30, 0)
    assert take(17, 13, 2) == whole[17:]
    assert take(0, 30, 1) == whole


def test_a_truncated_shard_is_reported_and_the_others_are_used(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 3, 4)
    data = paths[1].read_bytes()
    with tarfile.open(paths[1]) as tar:
        member = tar.getmember("0006.png")
    paths[1].write_bytes(data[: member.offset_data + member.size // 2])
    source = open_source(tmp_path, "all")
    assert "x-001.tar/0005.png" in names(source)
    assert "x-001.tar/0007.png" not in names(source)
    assert "x-002.tar/0011.png" in names(source)
    ((shard, reason),) = source.problems
    assert shard == "x-001.tar"
    assert reason.startswith("truncated; ")
    with train_batches(source, size=8, batch_size=4, seed=0) as batches:
        for batch, _ in zip(batches, range(6), strict=False):
            assert len(batch.names) == 4


def test_a_bad_member_costs_no_other_and_is_listed_with_its_shard(tmp_path: Path) -> None:
    for shard in range(2):
        with tarfile.open(tmp_path / f"x-{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for path in fill(tmp_path / "images", 3, first=3 * shard):
                tar.add(path, path.name)
    shutil.rmtree(tmp_path / "images")
    with tarfile.open(tmp_path / "x-1.tar") as tar:
        start = tar.getmember("004.png").offset
    data = bytearray((tmp_path / "x-1.tar").read_bytes())
    data[start + 124 : start + 136] = b"-0000000001\0"
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    (tmp_path / "x-1.tar").write_bytes(data)
    source = open_source(tmp_path, "all")
    assert names(source) == [f"x-{number // 3}.tar/{number:03d}.png" for number in (0, 1, 2, 3, 5)]
    ((shard_name, reason),) = source.problems
    assert shard_name == "x-1.tar"
    assert reason.startswith(f"the member at byte {start:,} is left out: its header has b'-0000000001")


def test_a_shard_that_shrinks_or_goes_after_the_scan(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 3, 2)
    source = open_source(tmp_path, "all")
    paths[0].write_bytes(paths[0].read_bytes()[:700])
    paths[1].unlink()
    with train_batches(source, size=8, batch_size=6, seed=0) as batches:
        batch = next(iter(batches))
    assert {name.split("/")[0] for name in batch.names} == {"x-002.tar"}
    reasons = " ".join(reason for _, reason in batch.skipped)
    assert "ends before this image" in reasons
    assert "No such file" in reasons


def test_a_member_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with path.open("wb") as file:  # a sparse file: nearly nothing on disk
        info = tarfile.TarInfo("huge.jpg")
        info.size = 3 << 30
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + info.size + 1024)
    source = open_source(path, "all")
    with pytest.raises(BadImageError, match=r"huge\.jpg: 3,221,225,472 bytes, more than"):
        source.read(0)


def test_a_member_larger_than_the_free_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftvq.data.shards.available_memory", lambda: 20 << 20)
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        info = tarfile.TarInfo("large.jpg")
        info.size = 17 << 20
        file.write(info.tobuf())
        file.truncate(512 + info.size + 1024)
    with pytest.raises(BadImageError, match=r"large\.jpg: 17,825,792 bytes, more than 16,777,216"):
        open_source(path, "all").read(0)


def test_folders_and_plain_tars(tmp_path: Path) -> None:
    images = fill(tmp_path / "in", 3)
    with tarfile.open(tmp_path / "plain.tar", "w") as tar:
        tar.add(tmp_path / "in", "photos")
    assert sorted(names(open_source(tmp_path / "plain.tar", "all"))) == [
        f"plain.tar/photos/{path.name}" for path in images
    ]
    # next to folders or images a tar is no shard
    assert names(open_source(tmp_path, "all")) == [f"in/{path.name}" for path in images]


def test_errors(tmp_path: Path) -> None:
    empty = tmp_path / "empty.tar"
    with tarfile.open(empty, "w"):
        pass
    with pytest.raises(ValueError, match=r"no images in 1 shards .*empty\.tar: no images in it.*looked for .*\.png"):
        open_source(empty)
    (tmp_path / "text.tar").write_text("no archive")
    with pytest.raises(ValueError, match="not a tar archive"):
        open_source(tmp_path / "text.tar")
    (tmp_path / "x.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(ValueError, match=r"compressed.*unpack it to \.tar"):
        open_source(tmp_path / "x.tar.gz")


def test_a_source_goes_to_another_process(tmp_path: Path) -> None:
    write_shards(tmp_path, 2, 3)
    source = open_source(tmp_path, "all")
    copy = pickle.loads(pickle.dumps(source))
    assert isinstance(copy, ShardSource)
    assert names(copy) == names(source)
    np.testing.assert_array_equal(copy.read(4), source.read(4))
