import errno
import os
import pickle
from pathlib import Path

import pytest
import torch

from driftvq.training.checkpoints import (
    AtomicCheckpointIO,
    checkpoint_path,
    list_checkpoints,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
)

CONTENTS = {"state_dict": {"w": torch.arange(1000.0)}, "driftvq": {"batches": 3, "random": [(1, (2, 3), None)]}}


def save(folder, *steps):
    for step in steps:
        AtomicCheckpointIO().save_checkpoint({**CONTENTS, "step": step}, checkpoint_path(folder, step))


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_saves_and_reads(tmp_path):
    save(tmp_path / "new", 5)
    (path,) = list_checkpoints(tmp_path / "new")
    read = AtomicCheckpointIO().load_checkpoint(path)
    assert torch.equal(read["state_dict"]["w"], CONTENTS["state_dict"]["w"])
    assert read["driftvq"] == CONTENTS["driftvq"]


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


def test_a_flipped_bit_is_noticed(tmp_path):
    save(tmp_path, 1)
    path = checkpoint_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(path)


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
    torch.save({"state_dict": {}, "extra": Evil(hit)}, path)
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
    save(tmp_path, 1)
    before = checkpoint_path(tmp_path, 1).read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((torch, "save", full) if when == "write" else (os, "fsync", full)))
    with pytest.raises(OSError, match="No space left on device; checkpoints written before are intact"):
        save(tmp_path, 1)
    assert checkpoint_path(tmp_path, 1).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
