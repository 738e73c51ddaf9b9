"""The hub, without a network: its client is replaced, or its port is closed."""

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch

from driftvq.models import VQVAE, push_to_hub, save_pretrained
from driftvq.models.hub import push_saved
from tests.models.cases import make_images, make_model


class FakeHub:
    """What the hub's client is asked to do, and the files it receives."""

    def __init__(self, private=False, error=None):
        self.repo_private, self.error = private, error
        self.asked, self.files = [], {}

    def api(self, token=None):
        self.token = token
        return self

    def create_repo(self, repo_id, *, private, exist_ok):
        self.asked.append(("create", repo_id, private, exist_ok))
        if self.error:
            raise self.error
        return f"https://hub/{repo_id}"

    def repo_info(self, repo_id):
        return SimpleNamespace(private=self.repo_private)

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        self.asked.append(("upload", repo_id))
        self.files = {p.name: p.read_bytes() for p in Path(folder_path).iterdir() if p.name in allow_patterns}


@pytest.fixture
def hub(monkeypatch):
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", fake.api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "stored")
    return fake


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A hub at a port where nobody listens, and an empty cache."""
    for module in ("constants", "file_download", "_snapshot_download", "hf_api"):
        loaded = __import__(f"huggingface_hub.{module}", fromlist=["x"])
        if hasattr(loaded, "ENDPOINT"):
            monkeypatch.setattr(loaded, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_pushing_uploads_a_model_that_loads(hub, tmp_path):
    model = make_model("vq")
    assert push_to_hub(model, "me/tokens", private=False, token="t", card={"psnr": 20.0}) == "https://hub/me/tokens"
    assert hub.token == "t"
    assert hub.asked == [("create", "me/tokens", False, True), ("upload", "me/tokens")]
    for name, content in hub.files.items():
        (tmp_path / name).write_bytes(content)
    assert torch.equal(VQVAE.from_pretrained(tmp_path).encode(make_images()), model.encode(make_images()))
    assert "| psnr | 20 |" in hub.files["README.md"].decode()


def test_the_method_pushes_too(hub):
    assert make_model("vq", steps=0).push_to_hub("me/tokens") == "https://hub/me/tokens"


def test_private_is_asked_for(hub):
    hub.repo_private = True
    push_to_hub(make_model("vq", steps=0), "me/tokens", private=True)
    assert hub.asked[0] == ("create", "me/tokens", True, True)
    assert hub.files


def test_nothing_private_goes_to_a_public_repository(hub):
    with pytest.raises(ValueError, match="me/tokens exists and is public"):
        push_to_hub(make_model("vq", steps=0), "me/tokens", private=True)
    assert not hub.files


def test_a_saved_model_is_pushed_with_its_own_card_and_the_results(hub, tmp_path):
    save_pretrained(make_model("vq", steps=0), tmp_path / "model")
    card = tmp_path / "model" / "README.md"
    card.write_text(card.read_text(encoding="utf-8") + "My licence.\n", encoding="utf-8")
    (tmp_path / "evaluation.json").write_text('{"values": {"rfid": 12.5}, "n": 2000}')
    push_saved(tmp_path, "me/tokens")
    text = hub.files["README.md"].decode()
    assert text.endswith("My licence.\n")
    assert text.index("| rfid | 12.5 |") < text.index("| images | 2000 |") < text.index("## Licence")
    assert "rfid" not in card.read_text(encoding="utf-8")
    (tmp_path / "model" / "README.md").write_text("# Mine\n\n## Results\n\nSee the paper.\n")
    push_saved(tmp_path, "me/tokens")
    assert hub.files["README.md"].decode() == "# Mine\n\n## Results\n\nSee the paper.\n"


def test_a_broken_model_is_not_pushed(hub, tmp_path):
    save_pretrained(make_model("vq", steps=0), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"):
        push_saved(tmp_path, "me/tokens")
    assert not hub.asked


@pytest.mark.parametrize("name", ["tokens", "a/b/c", "../x/y", "me/", "", "me/to kens"])
def test_wrong_names_are_refused_first(name, hub):
    with pytest.raises(ValueError, match="a model on the hub is named user/name, got"):
        push_to_hub(make_model("vq", steps=0), name)
    assert not hub.asked


def test_without_a_token_it_says_how_to_get_one(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(ValueError, match=r"no token for the Hugging Face hub: run `hf auth login`, or set HF_TOKEN"):
        push_to_hub(make_model("vq", steps=0), "me/tokens")
    assert not hub.asked


def test_errors_of_the_hub_are_one_line(hub):
    hub.error = ConnectionError("first\nsecond")
    with pytest.raises(OSError, match=r"^cannot upload to me/tokens: no connection to the hub \(first\)$"):
        push_to_hub(make_model("vq", steps=0), "me/tokens")


def test_errors_of_the_client_are_one_line(hub):
    client = next(c for c in huggingface_hub.errors.HfHubHTTPError.__mro__ if c.__module__.startswith(("http", "req")))
    hub.error = client("no route\nto host")
    with pytest.raises(OSError, match=r"no connection to the hub \(no route\)"):
        push_to_hub(make_model("vq", steps=0), "me/tokens")


def test_pushing_offline_is_one_line(offline, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "t")
    with pytest.raises(OSError, match=r"^cannot upload to me/tokens: no connection to the hub \(.*\)$"):
        push_to_hub(make_model("vq", steps=0), "me/tokens")


def test_loading_offline_is_one_line(offline):
    message = (
        r"^no folder nobody/nothing here, and it cannot be downloaded from the hub: no connection to the hub \(.*\)$"
    )
    with pytest.raises(OSError, match=message):
        VQVAE.from_pretrained("nobody/nothing")


def test_a_path_that_does_not_exist_is_not_looked_up(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("looked up"))
    with pytest.raises(ValueError, match=r"no such folder: \./runs/x; a model on the hub is named user/name"):
        VQVAE.from_pretrained("./runs/x")


def test_a_model_of_the_hub_loads(monkeypatch, tmp_path):
    model = make_model("vq")
    save_pretrained(model, tmp_path)
    asked = []

    def download(repo_id, *, revision, allow_patterns):
        asked.append((repo_id, revision, sorted(allow_patterns)))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loaded = VQVAE.from_pretrained("some/model", revision="v1")
    assert asked == [("some/model", "v1", ["config.json", "model.safetensors"])]
    assert torch.equal(loaded.encode(make_images()), model.encode(make_images()))


def test_another_kind_of_model_on_the_hub_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(tmp_path))
    with pytest.raises(ValueError, match=r"some/model on the hub is not a driftvq model: it has no config\.json"):
        VQVAE.from_pretrained("some/model")


def test_a_revision_of_a_folder_is_refused(tmp_path):
    save_pretrained(make_model("vq", steps=0), tmp_path)
    with pytest.raises(ValueError, match="revision 'v1' is for models on the hub"):
        VQVAE.from_pretrained(tmp_path, revision="v1")
