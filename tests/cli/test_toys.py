import subprocess
import sys

import pytest

from driftvq.cli import main


def test_toys_writes_every_picture(tmp_path, capsys):
    out = tmp_path / "pictures"
    assert main(["toys", "--demo", "translation", "--method", "vanilla", "ns_vq_toy", "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"vanilla.png", "ns_vq_toy.png", "curves.png", "translation.gif"}
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "ran ns_vq_toy" in captured.err


def test_table_goes_to_stdout(capsys):
    assert main(["toys", "--table", "--seeds", "2", "--demo", "split", "--method", "vanilla"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| split | vanilla | ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--demo", "transation"], "unknown demo 'transation'; known, nearest first: translation, "),
        (["--method", "transvq"], "unknown method 'transvq'; known, nearest first: trans_vq, "),
    ],
)
def test_unknown_names_are_one_error_before_any_work(arguments, message, tmp_path, capsys):
    assert main(["toys", *arguments, "--out", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--seed", "-1"], ["--seed", "1.5"]])
def test_wrong_numbers_are_named(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["toys", *arguments])
    assert stop.value.code == 2
    assert "must be a whole number of at least" in capsys.readouterr().err


def test_out_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["toys", "--out", str(tmp_path / "file")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from driftvq.cli import main\n"
        "try: main(['toys', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(int(any(name in sys.modules for name in ('torch', 'numpy', 'matplotlib', 'sklearn'))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "examples:" in result.stdout
