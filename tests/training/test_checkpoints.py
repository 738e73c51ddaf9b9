import errno
import io
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from driftvq.training.checkpoints import (
    PlainCheckpointIO,
    checkpoint_path,
    find_checkpoint,
    list_checkpoints,
    newest_checkpoint,
    prune_checkpoints,
    random_state,
    read_checkpoint,
    save_checkpoint,
    seed_all,
    set_random_state,
)
from tests.training.runs import differences

CONTENTS = {"model": {"w": torch.arange(1000.0)}, "random": [(1, (2, 3), None)]}
FABRIC = Fabric(accelerator="cpu", devices=1, plugins=PlainCheckpointIO())


def save(folder, *steps):
    for step in steps:
        path = checkpoint_path(folder, step)
        path.parent.mkdir(exist_ok=True)
        torch.save({**CONTENTS, "step": step}, path)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_saves_and_reads(tmp_path):
    layer = nn.Linear(3, 2)
    for step in (5, 6, 7):
        save_checkpoint(FABRIC, tmp_path, step, {"model": layer, "step": step, "random": CONTENTS["random"]})
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == [
        "step-00000007.ckpt",
        "step-00000006.ckpt",
    ]
    path, step = find_checkpoint(tmp_path, pytest.fail)
    assert step == 7
    other = nn.Linear(3, 2)
    rest = FABRIC.load(path, {"model": other}, weights_only=True)
    assert torch.equal(other.weight, layer.weight)
    assert rest == {"step": 7, "random": CONTENTS["random"]}


def test_a_run_without_a_checkpoint_starts_again(tmp_path):
    told = []
    assert find_checkpoint(tmp_path, told.append) == (None, 0)
    assert told == [f"{tmp_path} has no checkpoint yet: starting from the beginning"]


def test_the_newest_ones_are_kept_by_number_and_leftovers_removed(tmp_path):
    save(tmp_path, 5, 100_000_000, 99_999_999)
    (tmp_path / ".step-00000007.ckpt.part").touch()
    (tmp_path / "notes.txt").touch()
    prune_checkpoints(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "step-100000000.ckpt", "step-99999999.ckpt"]
    assert newest_checkpoint(tmp_path, pytest.fail)[1]["step"] == 100_000_000


@pytest.mark.parametrize("size", [0, 1, 100, 2000, -1, -200])
def test_a_truncated_checkpoint_is_passed_over_with_a_warning(tmp_path, size):
    save(tmp_path, 1, 2)
    newest = checkpoint_path(tmp_path, 2)
    newest.write_bytes(newest.read_bytes()[:size])
    warnings = []
    path, contents = newest_checkpoint(tmp_path, warnings.append)
    assert path == checkpoint_path(tmp_path, 1)
    assert contents["step"] == 1
    (warning,) = warnings
    assert str(newest) in warning
    assert "truncated" in warning


@pytest.mark.trial("one flipped bit in a checkpoint")
def test_a_flipped_bit_is_noticed(tmp_path, trials):
    save(tmp_path, 1)
    path = checkpoint_path(tmp_path, 1)
    sound, whole, rng = path.read_bytes(), read_checkpoint(path), random.Random(0)
    for _ in range(240):
        data = bytearray(sound)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with trials.one():
            try:
                found = read_checkpoint(path)
            except ValueError as error:
                found = error
            # What is between the entries of the archive may be anything; no other number is ever believed.
            assert differences(found, whole) == [] or (type(found) is ValueError and str(path) in str(found))


def test_when_none_can_be_read(tmp_path):
    with pytest.raises(ValueError, match="nothing to resume from"):
        newest_checkpoint(tmp_path / "none", pytest.fail)
    save(tmp_path, 1, 2)
    for path in list_checkpoints(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="none of the 2 checkpoints"):
        newest_checkpoint(tmp_path, lambda line: None)


def test_a_strangers_checkpoint_executes_nothing(tmp_path):
    hit = tmp_path / "hit"
    path = checkpoint_path(tmp_path, 1)
    torch.save({"model": {}, "step": 1, "extra": Evil(hit)}, path)
    with pytest.raises(ValueError, match="refused: it could run code"):
        read_checkpoint(path)
    path.write_bytes(pickle.dumps(Evil(hit)))
    with pytest.raises(ValueError, match="not a checkpoint"):
        read_checkpoint(path)
    assert not hit.exists()


def test_another_file_of_torch_is_no_checkpoint(tmp_path):
    torch.save([1], tmp_path / "step-00000001.ckpt")
    with pytest.raises(ValueError, match="not a checkpoint of a training run"):
        read_checkpoint(tmp_path / "step-00000001.ckpt")


@pytest.mark.parametrize("when", ["write", "fsync"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, when):
    save_checkpoint(FABRIC, tmp_path, 1, {**CONTENTS, "step": 1})
    (path,) = list_checkpoints(tmp_path / "checkpoints")
    before = path.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((torch, "save", full) if when == "write" else (os, "fsync", full)))
    with pytest.raises(OSError, match="No space left on device; checkpoints written before are intact"):
        save_checkpoint(FABRIC, tmp_path, 1, {**CONTENTS, "step": 1})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def draw():
    legacy = np.random.mtrand._rand
    return random.random(), random.gauss(0, 1), legacy.rand(), legacy.randn(), torch.rand(()).item()


def test_draws_go_on_where_they_were_saved():
    seed_all(3)
    draw()
    file = io.BytesIO()
    torch.save(random_state(), file)
    expected = [draw() for _ in range(3)]
    seed_all(4)
    file.seek(0)
    set_random_state(torch.load(file, weights_only=True))
    assert [draw() for _ in range(3)] == expected


def test_a_seed_fixes_all_generators():
    seed_all(5)
    first = draw()
    seed_all(5)
    assert draw() == first
    seed_all(6)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
