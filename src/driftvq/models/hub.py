"""Models on the Hugging Face hub."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from driftvq.files import read_object
from driftvq.models import pretrained
from driftvq.models.vqvae import VQVAE
from driftvq.names import STARTER, needed
from driftvq.records.runs import EVALUATION_FILE

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find_model(path_or_hub_id: str | Path, revision: str | None = None) -> Path:
    """The folder of a saved model: on this machine, in the package as ``starter``, or downloaded from the hub."""
    folder = pretrained.find_folder(path_or_hub_id)
    if folder is None and str(path_or_hub_id) == STARTER:
        folder = pretrained.find_folder(Path(__file__).with_name(STARTER))
    if folder is None:
        if not HUB_ID.fullmatch(str(path_or_hub_id)):
            names = f"a model on the hub is named user/name, the one that comes with driftvq {STARTER}"
            raise ValueError(f"no such folder: {path_or_hub_id}; {names}")
        hub, files = _hub(), [pretrained.CONFIG, pretrained.WEIGHTS]
        with _one_line_errors(hub, f"no folder {path_or_hub_id} here, and it cannot be downloaded from the hub"):
            folder = Path(hub.snapshot_download(str(path_or_hub_id), revision=revision, allow_patterns=files))
        if not (folder / pretrained.CONFIG).is_file():
            raise ValueError(f"{path_or_hub_id} on the hub is not a driftvq model: it has no {pretrained.CONFIG}")
        return folder
    if revision is not None:
        raise ValueError(f"revision {revision!r} is for models on the hub, but {path_or_hub_id} is a folder here")
    return folder


def push_to_hub(
    model: VQVAE, repo_id: str, *, private: bool = False, token: str | None = None, card: pretrained.Card | None = None
) -> str:
    """Upload a model with its card (see :func:`driftvq.models.pretrained.model_card`) to ``user/name``; its address.

    ``private`` is refused when the repository exists and is public; ``token`` is by default the one that ``hf auth
    login`` or HF_TOKEN left.
    """
    check_hub_id(repo_id)
    with tempfile.TemporaryDirectory() as folder:
        return push_folder(pretrained.save_pretrained(model, folder, card=card), repo_id, private=private, token=token)


def push_saved(path: str | Path, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload the model of a folder or a run, if it can be loaded, with its card, to which a run's results are added."""
    folder = pretrained.find_folder(path)
    if folder is None:
        raise ValueError(f"no such folder: {path}")
    model = pretrained.load_pretrained(folder)
    with tempfile.TemporaryDirectory() as name:
        staged = Path(name)
        for file in (pretrained.CONFIG, pretrained.WEIGHTS):
            shutil.copyfile(folder / file, staged / file)
        path_of_card = folder / pretrained.CARD
        card = path_of_card.read_text(encoding="utf-8") if path_of_card.is_file() else pretrained.model_card(model)
        (staged / pretrained.CARD).write_text(with_results(card, Path(path)), encoding="utf-8")
        return push_folder(staged, repo_id, private=private, token=token)


def push_folder(folder: Path, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a saved model as it is, with the card that lies beside it; see :func:`push_to_hub`."""
    check_hub_id(repo_id)
    hub = _hub()
    if token is None and hub.get_token() is None:
        raise ValueError("no token for the Hugging Face hub: run `hf auth login`, or set HF_TOKEN")
    api = hub.HfApi(token=token)
    with _one_line_errors(hub, f"cannot upload to {repo_id}"):
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        if private and not api.repo_info(repo_id).private:
            ways = "make it private on the hub first, or choose another name"
            raise ValueError(f"{repo_id} exists and is public; {ways}")
        files = [pretrained.CONFIG, pretrained.WEIGHTS, pretrained.CARD]
        message = "Upload a driftvq image tokenizer"
        api.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=files, commit_message=message)
    return str(address)


def check_hub_id(repo_id: str) -> str:
    """The name, if it can be one of a model on the hub."""
    if not HUB_ID.fullmatch(repo_id):
        raise ValueError(f"a model on the hub is named user/name, got {repo_id!r}")
    return repo_id


def with_results(card: str, run: Path) -> str:
    """A card with the numbers that ``driftvq evaluate`` left in a run, before its licence, unless it has some."""
    path = run / EVALUATION_FILE
    if not path.is_file():
        return card
    found = read_object(path)
    if not isinstance(values := found.get("values"), dict):
        raise ValueError(f"{path} is no evaluation: it has no 'values'")
    results = values | ({"images": found["n"]} if "n" in found else {})
    if not results or "\n## Results" in card:
        return card
    section = "\n".join(pretrained.results_section(results)).strip() + "\n\n"
    before, heading, after = card.partition("## Licence")
    return before + section + heading + after if heading else f"{card.rstrip()}\n\n{section}"


@contextmanager
def _one_line_errors(hub: ModuleType, what: str) -> Iterator[None]:
    """Errors of the hub and of the network as one line that says what to do."""
    errors = hub.errors
    # What the hub's HTTP client raises when the network fails; which client it is depends on the version.
    client = (cls for cls in errors.HfHubHTTPError.__mro__ if cls.__module__ not in ("builtins", errors.__name__))
    network = (ConnectionError, TimeoutError, *client)
    try:
        yield
    except errors.RepositoryNotFoundError as error:
        raise OSError(f"{what}: there is none, or you have no access (`hf auth login`)") from error
    except errors.RevisionNotFoundError as error:
        raise OSError(f"{what}: it has no such revision") from error
    except errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        hint = " (check the token: `hf auth login`)" if status in (401, 403) else ""
        raise OSError(f"{what}: {_line(error)}{hint}") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, *network) as error:
        raise OSError(f"{what}: no connection to the hub ({_line(error)})") from error


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _hub() -> Any:
    needed("huggingface_hub.errors", "models on the hub need huggingface_hub")
    return import_module("huggingface_hub")
