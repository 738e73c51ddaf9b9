import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from driftvq.machine import available_memory, git_state, pick_device


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "unknown device 'gpu'; known, nearest first: "),
        ("cpu:x", "device must be auto, cpu, cuda, cuda:N or mps, got 'cpu:x'"),
    ],
)
def test_unknown_devices_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        pick_device(name)


def test_auto_takes_what_is_there(monkeypatch):
    for cuda, mps, device in [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert pick_device("auto") == torch.device(device)
        assert pick_device("cpu") == torch.device("cpu")


def test_a_missing_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device 'cuda:1' is not available here; allowed: auto, cpu"):
        pick_device("cuda:1")


def test_free_memory_is_what_every_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    free = available_memory()
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()) * 1024
    assert 0 < free <= total
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert available_memory() == 0


def test_git_state(tmp_path):
    answers = {"ls-files": "folder.py", "rev-parse": "abc", "status": " M x.py"}

    def run(command, **options):
        assert options["timeout"] > 0
        return subprocess.CompletedProcess(command, 0, stdout=answers[command[3]] + "\n")

    assert git_state(tmp_path, run) == {"commit": "abc", "changed": True}
    answers["status"] = ""
    assert git_state(tmp_path, run) == {"commit": "abc", "changed": False}
    answers["ls-files"] = ""
    assert git_state(tmp_path, run) is None, "installed inside of somebody else's repository"

    def missing(command, **options):
        raise FileNotFoundError("git")

    assert git_state(tmp_path, missing) is None


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_state_of_any_folder_of_a_repository(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    (tmp_path / "tracked").mkdir()
    (tmp_path / "tracked" / "module.py").write_text("")
    (tmp_path / "installed").mkdir()
    git("init")
    git("add", "tracked")
    git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-m", "first")
    (tmp_path / "installed" / "module.py").write_text("")
    assert git_state(tmp_path / "installed") is None
    state = git_state(tmp_path / "tracked")
    assert state is not None
    assert not state["changed"]
    assert len(state["commit"]) == 40
