import json
import shutil
import subprocess

import pytest

from driftvq.lock import LOCK_FILE, locked
from driftvq.training.config import TrainConfig
from driftvq.training.folder import LAUNCHED, environment, git_state, new_run, resumed_config, write_run_files
from driftvq.training.run import train
from driftvq.training.settings import make_config, read_settings


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    for name in (LAUNCHED, "RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_run_without_a_name_gets_one_that_is_free():
    names = set()
    for _ in range(3):
        folder = new_run(TrainConfig(quantizer="trans_vq"))
        assert str(folder.parent) == "runs"
        assert "trans_vq" in folder.name
        folder.mkdir(parents=True)
        names.add(folder.name)
    assert len(names) == 3


def test_nothing_is_overwritten(tmp_path):
    out = tmp_path / "x"
    out.mkdir()
    assert new_run(TrainConfig(out=str(out))) == out
    write_run_files(out, TrainConfig(), 10)
    with pytest.raises(ValueError, match="not empty; choose another --out; to continue it: driftvq train --resume"):
        new_run(TrainConfig(out=str(out)))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        new_run(TrainConfig(out=str(tmp_path / "file")))


def test_a_folder_that_somebody_is_just_beginning_to_use_is_refused(tmp_path):
    out = tmp_path / "x"
    config = TrainConfig(out=str(out), steps=1, quantizer="none", workers=0)
    out.mkdir()
    with locked(out, "training"), pytest.raises(ValueError, match=r"another training, process \d+ on .* is working"):
        train(config)
    assert [path.name for path in out.iterdir()] == [LOCK_FILE]


def test_other_processes_take_the_folder_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="give it with --out"):
        new_run(TrainConfig())
    monkeypatch.setenv(LAUNCHED, str(tmp_path))
    (tmp_path / "config.yaml").touch()
    assert new_run(TrainConfig()) == tmp_path


def test_several_machines_need_a_name():
    with pytest.raises(ValueError, match="give it with --out"):
        new_run(TrainConfig(num_nodes=2))


def test_the_saved_config_describes_the_same_run_again(tmp_path):
    config = TrainConfig(epochs=2.0, quantizer_options={"commitment_weight": 1.0}, out="runs/y", betas=(0.5, 0.9))
    write_run_files(tmp_path, config, 33)
    again = make_config(read_settings(tmp_path / "config.yaml"))
    assert again.to_dict() == {**config.to_dict(), "epochs": None, "steps": 33, "out": None}


def test_the_environment_is_saved(tmp_path):
    write_run_files(tmp_path, TrainConfig(), 1)
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["packages"]["torch"] == environment()["packages"]["torch"]
    assert {"command", "date", "python", "platform", "git", "threads"} <= found.keys()


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


def test_a_resumed_run_keeps_its_course(tmp_path):
    write_run_files(tmp_path, TrainConfig(seed=3), 10)
    config = resumed_config(tmp_path, {"steps": 20, "workers": 2}, {})
    assert (config.steps, config.workers, config.seed, config.out) == (20, 2, 3, str(tmp_path))
    assert resumed_config(tmp_path, {"seed": 3}, {}).seed == 3
    with pytest.raises(ValueError, match="these differ: codebook_size: 1024 → 64; seed: 3 → 4"):
        resumed_config(tmp_path, {"seed": 4}, {"codebook_size": 64})
    with pytest.raises(ValueError, match="is not a run to resume"):
        resumed_config(tmp_path / "none", {}, {})
