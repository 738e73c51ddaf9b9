import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from driftvq.data import BadImageError, ImageBatch, ImageSource, eval_batches, open_source, rows, train_batches
from driftvq.data.images import Pixels, fit_image, read_image
from tests.data.files import encoded, fill, noise, smooth


def take(count: int, source: ImageSource, **options: object) -> list[ImageBatch]:
    options = {"size": 8, "batch_size": 4, "seed": 3} | options
    with train_batches(source, **options) as batches:  # type: ignore[arg-type]
        return [batch for _, batch in zip(range(count), batches, strict=False)]


def same(first: list[ImageBatch], second: list[ImageBatch]) -> bool:
    return all(
        torch.equal(one.images, other.images) and one.names == other.names
        for one, other in zip(first, second, strict=True)
    )


@pytest.fixture
def photos(tmp_path: Path) -> ImageSource:
    """Eleven images of different shapes, two of them damaged."""
    for number in range(11):
        height, width = 12 + number, 30 - 2 * number
        data = encoded(smooth(height, width, number), "JPEG")
        (tmp_path / f"{number:02d}.jpg").write_bytes(data[: len(data) * 9 // 10] if number in (2, 7) else data)
    return open_source(tmp_path, "all")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_depends_on_seed_and_step_alone(photos: ImageSource, workers: int) -> None:
    reference = take(9, photos)
    assert all(batch.images.shape == (4, 3, 8, 8) and batch.images.dtype == torch.uint8 for batch in reference)
    assert same(take(9, photos, workers=workers), reference)
    for start in (1, 5):
        assert same(take(9 - start, photos, workers=workers, start_step=start), reference[start:])
    assert not same(take(9, photos, seed=4), reference)


class Counting:
    """Images of one shape, and how often each was read."""

    def __init__(self, count: int, height: int, width: int) -> None:
        self.problems: list[tuple[str, str]] = []
        self.images = [smooth(height, width, number) for number in range(count)]
        self.reads = [0] * count

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        self.reads[index] += 1
        return self.images[index]


@pytest.mark.parametrize("crop", ["center", "random"])
def test_a_small_data_set_is_read_once(crop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives the batches that it gives without a memory."""
    kept, read = Counting(6, 9, 14), Counting(6, 9, 14)
    batches = take(12, kept, crop=crop)
    assert kept.reads == [1] * 6
    monkeypatch.setattr(rows, "KEPT_BYTES", 0)
    assert same(take(12, read, crop=crop), batches)
    assert read.reads == [8] * 6
    assert not same(batches[:1], batches[3:4])  # another order, and other sides


def test_no_more_is_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counting(6, 8, 40)
    monkeypatch.setattr(rows, "KEPT_BYTES", 3 * 8 * 8 * 3 + 1)
    batches = train_batches(source, size=8, batch_size=6, seed=0, crop="center")
    for _, _ in zip(range(4), batches, strict=False):
        pass
    assert sorted(source.reads) == [1, 1, 1, 4, 4, 4]
    kept = list(batches._rows._kept.values())  # type: ignore[union-attr]
    assert [image.nbytes for image in kept] == [8 * 8 * 3] * 3
    assert all(image.base is None for image in kept)  # not the middle of something larger, which would be kept too


def test_iterating_again_starts_again(photos: ImageSource) -> None:
    batches = train_batches(photos, size=8, batch_size=4, seed=3, start_step=2, workers=1)
    first, second = iter(batches), iter(batches)
    pairs = [(next(first), next(second)) for _ in range(3)]
    assert same([one for one, _ in pairs], [other for _, other in pairs])
    batches.close()


def test_images_are_what_reading_and_fitting_gives(tmp_path: Path) -> None:
    fill(tmp_path, 6)
    (tmp_path / "wide.png").write_bytes(encoded(noise(8, 20)))
    source = open_source(tmp_path, "all")
    for batch in take(5, source, crop="center", flip=False):
        for image, name in zip(batch.images, batch.names, strict=True):
            expected = fit_image(read_image(tmp_path / name), 8)
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_crops_and_flips_change_from_epoch_to_epoch(tmp_path: Path) -> None:
    (tmp_path / "wide.png").write_bytes(encoded(noise(8, 40)))
    source = open_source(tmp_path, "all")
    images = torch.cat([batch.images for batch in take(10, source)])
    assert len({image.numpy().tobytes() for image in images}) > 20
    assert len({image.numpy().tobytes() for batch in take(3, source, crop="center") for image in batch.images}) == 2


def test_every_image_once_an_epoch(tmp_path: Path) -> None:
    fill(tmp_path, 12)
    source = open_source(tmp_path, "all")
    seen = [name for batch in take(6, source) for name in batch.names]
    assert sorted(seen[:12]) == sorted(seen[12:]) == [source.name(index) for index in range(12)]
    assert seen[:12] != seen[12:]


@pytest.mark.parametrize("workers", [0, 2])
def test_two_ranks_make_up_the_global_batch(photos: ImageSource, workers: int) -> None:
    whole = take(6, photos, batch_size=6)
    ranks = [take(6, photos, batch_size=3, rank=rank, world_size=2, workers=workers) for rank in range(2)]
    for batch, first, second in zip(whole, *ranks, strict=True):
        assert torch.equal(torch.cat([first.images, second.images]), batch.images)
        assert first.names + second.names == batch.names


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_replaced_and_reported_once(photos: ImageSource, workers: int) -> None:
    batches = take(12, photos, workers=workers)
    names = [name for batch in batches for name in batch.names]
    assert "02.jpg" not in names
    assert "07.jpg" not in names
    skipped = [entry for batch in batches for entry in batch.skipped]
    assert sorted(name for name, _ in skipped) == ["02.jpg", "07.jpg"]
    assert all("truncated" in reason for _, reason in skipped)


@pytest.mark.parametrize("workers", [0, 1])
def test_strict_raises_with_the_name_in_one_line(photos: ImageSource, workers: int) -> None:
    with pytest.raises(BadImageError, match=r"cannot read 0[27]\.jpg: .*truncated") as caught:
        take(12, photos, workers=workers, strict=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadImageError, match=r"cannot read 02\.jpg: .*truncated"):
        list(eval_batches(photos, size=8, batch_size=4, workers=workers, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_readable_ends_with_an_error(tmp_path: Path, workers: int) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_bytes(b"no image")
    source = open_source(tmp_path, "all")
    with pytest.raises(BadImageError, match=r"3 images in a row cannot be read, the last one, .\.jpg: not an image"):
        take(1, source, workers=workers)
    with pytest.raises(BadImageError, match=r"none of the images can be read; the first one, a\.jpg: not an image"):
        list(eval_batches(source, size=8, batch_size=2, workers=workers))
    assert list(eval_batches(source, size=8, batch_size=2, rank=1, world_size=4)) == []  # others may have some


def test_one_readable_image_fills_every_batch(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"bad{number}.png").write_bytes(b"")
    fill(tmp_path, 1)
    batches = take(3, open_source(tmp_path, "all"), batch_size=16)
    assert {name for batch in batches for name in batch.names} == {"000.png"}
    assert sum(len(batch.skipped) for batch in batches) == 9


class Endless:
    """A million images none of which can be read."""

    problems: list[tuple[str, str]] = []  # noqa: RUF012
    reads = 0

    def __len__(self) -> int:
        return 1_000_000

    def name(self, index: int) -> str:
        return f"{index}.jpg"

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        Endless.reads += 1
        raise BadImageError("gone")


def test_a_broken_data_set_is_given_up_early() -> None:
    with pytest.raises(BadImageError, match=r"1000 images in a row .*: gone"):
        take(1, Endless())
    assert Endless.reads == 1000


class Hints:
    """A source that notes how small it may decode."""

    def __init__(self) -> None:
        self.problems: list[tuple[str, str]] = []
        self.hints: list[int | None] = []

    def __len__(self) -> int:
        return 4

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        self.hints.append(min_side)
        return noise(9, 9)


def test_training_may_decode_at_twice_the_size_and_evaluation_decodes_in_full() -> None:
    source = Hints()
    take(1, source, size=8)
    assert set(source.hints) == {16}
    source.hints.clear()
    list(eval_batches(source, size=8, batch_size=4))
    assert source.hints == [None] * 4


def test_problems_found_while_opening_come_with_the_first_batch(photos: ImageSource) -> None:
    photos.problems = [("folder/", "cannot be listed")]
    batches = take(2, photos)
    assert batches[0].skipped[0] == ("folder/", "cannot be listed")
    assert all(name != "folder/" for name, _ in batches[1].skipped)
    assert next(iter(eval_batches(photos, size=8, batch_size=2))).skipped[0] == ("folder/", "cannot be listed")
    with pytest.raises(BadImageError, match=r"cannot read folder/: cannot be listed"):
        take(1, photos, strict=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_goes_through_everything_in_order(photos: ImageSource, workers: int) -> None:
    batches = list(eval_batches(photos, size=8, batch_size=4, workers=workers))
    assert [len(batch.names) for batch in batches] == [4, 4, 1]  # full in spite of the skipped ones
    assert [name for batch in batches for name in batch.names] == [
        f"{number:02d}.jpg" for number in range(11) if number not in (2, 7)
    ]
    assert sorted(name for batch in batches for name, _ in batch.skipped) == ["02.jpg", "07.jpg"]
    for batch in batches:
        for image, name in zip(batch.images, batch.names, strict=True):
            expected = fit_image(photos.read(int(name[:2])), 8)
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_evaluation_reports_what_is_skipped_at_the_end(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    for number in range(5):
        (tmp_path / f"x{number}.png").write_bytes(b"")
    batches = list(eval_batches(open_source(tmp_path, "all"), size=8, batch_size=2))
    assert [len(batch.names) for batch in batches] == [2, 2]
    assert len(batches[-1].skipped) == 5


def test_evaluation_keeps_sizes_and_order(tmp_path: Path) -> None:
    shapes = [(4, 6)] * 3 + [(5, 6)] + [(4, 6)] * 2
    for number, shape in enumerate(shapes):
        (tmp_path / f"{number}.png").write_bytes(encoded(noise(*shape, number)))
    batches = list(eval_batches(open_source(tmp_path, "all"), size=None, batch_size=2, workers=1))
    assert [tuple(batch.images.shape) for batch in batches] == [(2, 3, 4, 6), (1, 3, 4, 6), (1, 3, 5, 6), (2, 3, 4, 6)]
    assert [name for batch in batches for name in batch.names] == [f"{number}.png" for number in range(6)]
    np.testing.assert_array_equal(batches[2].images[0].permute(1, 2, 0).numpy(), noise(5, 6, 3))


def test_evaluation_over_ranks_and_with_a_limit(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    source = open_source(tmp_path, "all")

    def names(**options: int) -> list[str]:
        return [name for batch in eval_batches(source, size=8, batch_size=3, **options) for name in batch.names]

    assert sorted(names(rank=0, world_size=3) + names(rank=1, world_size=3) + names(rank=2, world_size=3)) == names()
    assert names(limit=5) == ["000.png", "002.png", "004.png", "006.png", "008.png"]
    assert names(limit=99) == names()
    assert names(start=7) == ["007.png", "008.png", "009.png"]
    assert names(rank=11, world_size=12) == []
    assert sorted(names(limit=5, rank=0, world_size=2) + names(limit=5, rank=1, world_size=2)) == names(limit=5)


def test_the_global_random_state_is_left_alone(photos: ImageSource) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    take(2, photos, workers=1)
    list(eval_batches(photos, size=8, batch_size=4, workers=1))
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002


def children() -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@pytest.mark.skipif(not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(), reason="needs /proc")
def test_workers_ignore_ctrl_c_and_end_with_close(photos: ImageSource) -> None:
    before = children()
    batches = train_batches(photos, size=8, batch_size=4, seed=3, workers=2)
    iterator = iter(batches)
    got = [next(iterator)]
    workers = children() - before
    assert len(workers) >= 2
    for pid in workers:
        os.kill(pid, signal.SIGINT)  # as a terminal does, to the whole process group
    got += [next(iterator) for _ in range(8)]
    assert same(got, take(9, photos))
    batches.close()
    deadline = time.monotonic() + 30
    while workers & children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers & children()
    assert list(iterator) == []  # ends instead of waiting for workers that are gone


def test_ctrl_c_while_workers_start_harms_none(photos: ImageSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftvq.data.loader._start_worker", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert same(take(3, photos, workers=2), take(3, photos))


def test_wrong_numbers_are_named(photos: ImageSource) -> None:
    good = {"size": 8, "batch_size": 4, "seed": 0}
    for wrong, message in (
        ({"size": 0}, "size must be at least 1; received 0"),
        ({"batch_size": 0}, "batch_size must be at least 1; received 0"),
        ({"rank": 2, "world_size": 2}, "rank must be from 0 to 1; received 2"),
        ({"workers": -1}, "workers must be 0 or more; received -1"),
        ({"start_step": -1}, "start_step must be 0 or more; received -1"),
        ({"crop": "middle"}, "unknown crop 'middle'"),
        ({"seed": -5}, "seed must be 0 or more; received -5"),
    ):
        with pytest.raises(ValueError, match=message):
            train_batches(photos, **(good | wrong))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit must be at least 1, or None for all; received 0"):
        eval_batches(photos, size=8, batch_size=4, limit=0)
    with pytest.raises(ValueError, match=rf"start must be from 0 to {len(photos) - 1}; received {len(photos)}"):
        eval_batches(photos, size=8, batch_size=4, start=len(photos))


def test_faces(shared_data: Path) -> None:
    source = open_source(shared_data / "faces64", "train")
    assert len(source) == 8000
    (batch,) = take(1, source, size=64, batch_size=16)
    assert batch.images.shape == (16, 3, 64, 64)
    assert 60 < batch.images.float().mean() < 190


KILLED = """
import multiprocessing, os, signal
import driftvq.data as data
multiprocessing.set_start_method({method!r})
source = data.open_source({folder!r}, "all")
batches = iter(data.train_batches(source, size=256, batch_size=32, seed=0, workers=2))
next(batches)
with open({workers!r}, "w") as file:
    file.write(" ".join(str(worker.pid) for worker in multiprocessing.active_children()))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_with_the_process_that_was_killed(method: str, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(encoded(noise(300, 300, number), "PNG"))
    code = KILLED.format(method=method, folder=str(tmp_path), workers=str(tmp_path / "workers"))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    workers = [Path("/proc") / number for number in (tmp_path / "workers").read_text().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 30
    while any(worker.is_dir() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    left = [worker for worker in workers if worker.is_dir()]
    for worker in left:
        os.kill(int(worker.name), signal.SIGKILL)
    assert left == []
