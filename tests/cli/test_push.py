import huggingface_hub
import pytest

from driftvq.cli import main
from driftvq.models import save_pretrained
from tests.models.cases import make_model
from tests.models.test_hub import hub as hub


def test_push_uploads_a_run_and_prints_its_address(hub, tmp_path, capsys):
    hub.repo_private = True
    save_pretrained(make_model("vq", steps=0), tmp_path / "model")
    assert main(["push", str(tmp_path), "me/tokens", "--private"]) == 0
    assert capsys.readouterr().out == "https://hub/me/tokens\n"
    assert hub.asked == [("create", "me/tokens", True, True), ("upload", "me/tokens")]
    assert set(hub.files) == {"config.json", "model.safetensors", "README.md"}


def test_public_by_default(hub, tmp_path):
    save_pretrained(make_model("vq", steps=0), tmp_path)
    assert main(["push", str(tmp_path), "me/tokens"]) == 0
    assert hub.asked[0] == ("create", "me/tokens", False, True)


def test_errors_are_one_line(hub, tmp_path, capsys, monkeypatch):
    save_pretrained(make_model("vq", steps=0), tmp_path / "model")
    hub.error = ConnectionError("unreachable\nmore")
    assert_says(capsys, ["push", str(tmp_path), "me/tokens"], "no connection to the hub (unreachable)")
    assert_says(capsys, ["push", str(tmp_path / "nowhere"), "me/tokens"], "no such folder")
    assert_says(capsys, ["push", str(tmp_path), "tokens"], "a model on the hub is named user/name, got 'tokens'")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert_says(capsys, ["push", str(tmp_path), "me/tokens"], "run `hf auth login`, or set HF_TOKEN")


def assert_says(capsys, arguments, message):
    capsys.readouterr()
    assert main(arguments) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert message in errors[0]


def test_both_arguments_are_needed(capsys):
    with pytest.raises(SystemExit):
        main(["push", "run"])
    assert "USER/NAME" in capsys.readouterr().err
