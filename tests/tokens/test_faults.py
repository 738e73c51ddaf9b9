"""Writers on a disk that fails at any of its changes: nothing half-done looks whole, and nothing written is lost."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from driftvq.data import write_image
from driftvq.files import write_text
from driftvq.models.pretrained import load_pretrained
from driftvq.tokens import TokenWriter, decode_tokens, encode_source, open_tokens
from driftvq.tokens.format import partial_folder, read_names
from tests.conftest import Trials
from tests.failing_disk import every_failure
from tests.tokens.cases import MODEL, Source, make_model, pixels

TRIAL = pytest.mark.trial("a disk that fails at its k-th change, once or for good, for all k")
BATCHES = [(["a.jpg", "b.jpg"], 1), (["c.jpg"], 2), (["d.jpg", "e.jpg"], 2)]


def write_tokens(out: Path, **options: bool) -> None:
    """Write what is left of the batches; each is made safe by itself."""
    with TokenWriter(out, MODEL, **options) as writer:
        done = list(read_names(writer.folder / "names.jsonl")) if writer.index.n else []
        for number, (names, side) in enumerate(BATCHES):
            if names[0] not in done:
                tokens = np.full((len(names), side, side), number)
                writer.write(tokens, names, (4 * side, 4 * side), [(f"bad-{number}", "broken")])
                writer.commit()
        writer.finish()


def check_whole(out: Path) -> None:
    tokens = open_tokens(out)
    assert list(tokens.names()) == [name for names, _ in BATCHES for name in names]
    assert [int(array[0, 0]) for array in tokens] == [0, 0, 1, 2, 2]
    assert len((out / "skipped.txt").read_text().splitlines()) == 3


@pytest.mark.parametrize("for_good", [False, True])
@TRIAL
def test_tokens_are_whole_or_can_be_resumed(trials: Trials, for_good: bool, tmp_path: Path) -> None:
    for disk in every_failure(tmp_path, for_good):
        out = tmp_path / f"tokens-{trials.tried}"
        with suppress(OSError):
            write_tokens(out)
        disk.mend()
        trials.tried += disk.failed
        if out.exists():
            check_whole(out)
        else:
            resume = (partial_folder(out) / "index.json").is_file()
            write_tokens(out, resume=resume, overwrite=not resume)
            check_whole(out)
        shutil.rmtree(out)
        trials.held = trials.tried
    assert trials.tried > 40


@pytest.mark.parametrize("for_good", [False, True])
@TRIAL
def test_overwriting_leaves_the_old_tokens_or_the_new(
    trials: Trials, for_good: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found: set[str] = set()
    old = tmp_path_factory.mktemp("old") / "tokens"
    with TokenWriter(old, MODEL) as writer:
        writer.write(np.full((1, 1, 1), 7), ["old.jpg"], (4, 4))
        writer.finish()
    for disk in every_failure(tmp_path, for_good):
        out = tmp_path / "tokens"
        disk.mended = True
        shutil.copytree(old, out)
        disk.mended, disk.changes = False, 0
        with suppress(OSError):
            write_tokens(out, overwrite=True)
        disk.mend()
        trials.tried += disk.failed
        if not out.exists():  # killed between two renames
            found.add("neither")
            write_tokens(out, resume=True)
            check_whole(out)
        elif list(open_tokens(out).names()) == ["old.jpg"]:
            found.add("old")
        else:
            found.add("new")
            check_whole(out)
        for path in tmp_path.iterdir():
            shutil.rmtree(path)
        trials.held = trials.tried
    assert trials.tried > 40
    assert found == ({"old", "new", "neither"} if for_good else {"old", "new"})


def text(path: Path, number: int) -> None:
    write_text(path, str(number) * 100_000)


def image(path: Path, number: int) -> None:
    write_image(path, pixels(90, 80, seed=number))


@pytest.mark.parametrize("write", [text, image])
@pytest.mark.parametrize("for_good", [False, True])
@TRIAL
def test_a_file_is_as_it_was_or_complete(
    trials: Trials, write: Callable[[Path, int], None], for_good: bool, tmp_path: Path
) -> None:
    path, contents = tmp_path / "x.png", []
    for number in (2, 1):
        write(path, number)
        contents.append(path.read_bytes())
    for disk in every_failure(tmp_path, for_good):
        disk.mended = True
        write(path, 1)
        disk.mended, disk.changes = False, 0
        with suppress(OSError):
            write(path, 2)
        disk.mend()
        trials.tried += disk.failed
        assert path.read_bytes() in (contents if disk.failed else contents[:1])
        others = [entry for entry in tmp_path.iterdir() if entry != path]
        assert len(others) <= for_good  # a disk that fails for good cannot take back what was begun
        for other in others:
            other.unlink()
        trials.held = trials.tried
    assert trials.tried > 3


@pytest.mark.parametrize("for_good", [False, True])
@TRIAL
def test_a_model_is_the_old_one_the_new_one_or_refused(trials: Trials, for_good: bool, tmp_path: Path) -> None:
    models, folder = [make_model(seed=seed, codebook_size=16 + seed) for seed in (0, 1)], tmp_path / "m"
    for disk in every_failure(tmp_path, for_good):
        disk.mended = True
        models[0].save_pretrained(folder)
        disk.mended, disk.changes = False, 0
        with suppress(OSError):
            models[1].save_pretrained(folder)
        disk.mend()
        trials.tried += disk.failed
        size = 0
        with suppress(ValueError):
            size = load_pretrained(folder).config.codebook_size
        assert size in (0, 16, 17)
        models[1].save_pretrained(folder)
        assert load_pretrained(folder).config.codebook_size == 17
        trials.held = trials.tried
    assert trials.tried > 3


@TRIAL
def test_decoded_images_are_all_there_or_none(
    trials: Trials, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model, out = make_model(), tmp_path / "images"
    tokens = encode_source(model, Source([(8, 8), (12, 8)]), tmp_path_factory.mktemp("tokens") / "tokens")
    for disk in every_failure(tmp_path, for_good=False):
        with suppress(OSError):
            decode_tokens(model, tokens, out)
        disk.mend()
        trials.tried += disk.failed
        assert disk.failed or out.is_dir()
        if out.is_dir():
            assert len(list(out.rglob("*.png"))) == 2
            shutil.rmtree(out)
        assert list(tmp_path.iterdir()) == []
        trials.held = trials.tried
    assert trials.tried > 10
