import argparse
from pathlib import Path

import pytest

import driftvq
from driftvq.cli import COMMANDS, main
from driftvq.cli.arguments import find_run, whole


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", ""])
def test_whole_numbers_have_a_least(text):
    assert whole(1)("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be a whole number of at least 1, got {text!r}"):
        whole(1)(text)


@pytest.mark.parametrize("found", ["config.yaml", "metrics.jsonl", "checkpoints"])
def test_a_run_is_known_by_what_is_in_it(tmp_path: Path, found):
    (tmp_path / "run" / "model").mkdir(parents=True)
    assert find_run(str(tmp_path / "run")) is None
    assert find_run("user/name") is None
    (tmp_path / "run" / found).mkdir()
    assert find_run(str(tmp_path / "run")) == tmp_path / "run"
    assert find_run(str(tmp_path / "run" / "model")) == tmp_path / "run"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_what_it_is_for_in_a_sentence(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    sentence = capsys.readouterr().out.split("\n\n")[1]
    assert sentence[0].isupper()
    assert sentence[-1] == "."
    assert sentence[-2] not in ".?!"


@pytest.mark.parametrize(
    ("words", "command", "message"),
    [
        (["train", "--lr", "3"], "driftvq train", "unknown flag --lr; did you mean --learning-rate?"),
        (
            ["train", "--codebook_size"],
            "driftvq train",
            "unknown flag --codebook_size; did you mean --codebook-size?",
        ),
        (
            ["train", "--beta", "1"],
            "driftvq train",
            "unknown flag --beta; --help lists the known ones; "
            "an option of the quantizer: --quantizer-options commitment_weight=VALUE",
        ),
        (["train", "--gpu"], "driftvq train", "unknown flag --gpu; did you mean --accelerator?"),
        (["compare", "--method", "vq"], "driftvq compare", "unknown flag --method; did you mean --methods?"),
        (["report", "a", "--formt"], "driftvq report", "unknown flag --formt; did you mean --format?"),
        (["toys", "--qqqqqq"], "driftvq toys", "unknown flag --qqqqqq; --help lists the known ones"),
        (["encode", "m", "p", "--ot", "d"], "driftvq encode", "unknown flag --ot; did you mean --out?"),
        (["toys", "extra"], "driftvq toys", "unexpected 'extra'"),
        (["--versoin", "toys"], "driftvq", "unknown flag --versoin; did you mean --version?"),
        (["--versoin"], "driftvq", "unknown flag --versoin; did you mean --version?"),
    ],
)
def test_a_wrong_flag_gets_the_nearest_and_the_usage_of_its_command(words, command, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: {command} [-h]")
    assert error.splitlines()[-1] == f"{command}: error: {message}"


def test_a_wrong_command_gets_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert capsys.readouterr().err.startswith("driftvq: error: unknown command 'trian'; known, nearest first: train,")


def test_without_a_command_all_of_them_are_listed(capsys):
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert [name for name in COMMANDS if f"    {name}" not in shown] == []


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"driftvq {driftvq.__version__}\n"


@pytest.mark.parametrize(("missing", "is_ours"), [("matplotlib", False), ("driftvq.no_such_module", True)])
def test_a_missing_package_is_named_and_a_missing_module_of_ours_is_a_fault(missing, is_ours, monkeypatch, capsys):
    def run(args):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr("driftvq.cli.toys.run", run)
    if is_ours:
        with pytest.raises(ModuleNotFoundError):
            main(["toys"])
    else:
        assert main(["toys"]) == 2
        assert f"driftvq toys: error: it needs more packages (No module named '{missing}'): pip install" in (
            capsys.readouterr().err
        )


def test_an_interrupt_before_a_command_is_read_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("driftvq.cli.import_module", interrupted)
    assert main(["train", "--steps", "1"]) == 130
    assert capsys.readouterr().err == "driftvq train: interrupted\n"
