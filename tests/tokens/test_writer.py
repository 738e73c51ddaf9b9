import errno
import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from driftvq.tokens import TokenModel, TokenWriter, open_tokens
from driftvq.tokens import writer as writer_module
from driftvq.tokens.format import TokenIndex
from tests.tokens.cases import MODEL


def tokens_of(number, count=2, shape=(2, 3)):
    return np.random.default_rng(number).integers(0, 1000, (count, *shape))


def write_batch(writer, number):
    writer.write(tokens_of(number), [f"{number}-0", f"{number}-1"], (8, 12), [(f"bad-{number}", "a\nreason")])


def write_all(out, numbers, **options):
    with TokenWriter(out, MODEL, {"size": None}, **options) as writer:
        for number in numbers:
            write_batch(writer, number)
        return writer.finish()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_nothing_has_the_final_name_before_the_end(tmp_path):
    with TokenWriter(tmp_path / "tokens", MODEL) as writer:
        write_batch(writer, 0)
        assert [path.name for path in tmp_path.iterdir()] == ["tokens.partial"]
        writer.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_skipped_images_are_listed_on_one_line_each(tmp_path):
    folder = write_all(tmp_path / "tokens", [0, 1])
    assert (folder / "skipped.txt").read_text() == '"bad-0"\ta reason\n"bad-1"\ta reason\n'
    assert open_tokens(folder).index.skipped == 2


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_an_interrupted_run_is_resumed_to_the_same_files(cut, tmp_path):
    write_all(tmp_path / "whole", range(4))
    with TokenWriter(tmp_path / "tokens", MODEL, {"size": None}) as writer:
        for number in range(cut):
            write_batch(writer, number)
        writer._tokens.append(tokens_of(9))  # a batch of which only a part was written
        writer._names.write(b'"half')
    assert (tmp_path / "tokens.partial").exists() == (cut > 0)
    write_all(tmp_path / "tokens", range(cut, 4), resume=cut > 0)
    assert contents(tmp_path / "tokens") == contents(tmp_path / "whole")


def test_a_killed_process_leaves_what_was_committed(tmp_path):
    code = f"""
import os, signal
import numpy as np
from driftvq.tokens import TokenModel, TokenWriter
writer = TokenWriter({str(tmp_path / "tokens")!r}, TokenModel("ab" * 32, 1000, 4), {{"size": None}})
for number in range(3):
    tokens = np.random.default_rng(number).integers(0, 1000, (2, 2, 3))
    names = [f"{{number}}-0", f"{{number}}-1"]
    writer.write(tokens, names, (8, 12), [(f"bad-{{number}}", "a reason")])
    if number == 1:
        writer.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    write_all(tmp_path / "whole", range(4))
    write_all(tmp_path / "tokens", [2, 3], resume=True)
    assert contents(tmp_path / "tokens") == contents(tmp_path / "whole")


@pytest.mark.parametrize("where", ["index", "rename"])
def test_a_run_killed_while_finishing_is_resumed(where, tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    write_all(tmp_path / "whole", range(2))
    with monkeypatch.context() as patch:
        if where == "rename":
            patch.setattr(writer_module.layout, "replace_folder", die)
        else:
            write = TokenIndex.write
            patch.setattr(TokenIndex, "write", lambda index, to: die() if index.complete else write(index, to))
        with pytest.raises(KeyboardInterrupt):
            write_all(tmp_path / "tokens", range(2))
    assert not (tmp_path / "tokens").exists()
    write_all(tmp_path / "tokens", [], resume=True)
    assert contents(tmp_path / "tokens") == contents(tmp_path / "whole")


def test_a_full_disk_leaves_the_last_commit_intact(tmp_path, monkeypatch):
    writer = TokenWriter(tmp_path / "tokens", MODEL, {"size": None})
    write_batch(writer, 0)
    writer.commit()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill():
        with writer:
            write_batch(writer, 1)
            writer.commit()

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "sync", full)
        with pytest.raises(OSError, match="No space left"):
            fill()
    write_all(tmp_path / "whole", range(2))
    write_all(tmp_path / "tokens", [1], resume=True)
    assert contents(tmp_path / "tokens") == contents(tmp_path / "whole")


def interrupted(out, settings=None, model=MODEL):
    with TokenWriter(out, model, settings) as writer:
        write_batch(writer, 0)


def test_what_resumes_must_be_the_same(tmp_path):
    interrupted(tmp_path / "tokens", {"size": 64, "images": "a"})
    with pytest.raises(ValueError, match="other settings: size was 64, is None; --overwrite starts again"):
        TokenWriter(tmp_path / "tokens", MODEL, {"size": None, "images": "a"}, resume=True)
    other = TokenModel("cd" * 32, 1000, 4)
    with pytest.raises(ValueError, match=f"begun with model {'ab' * 32}, this is {'cd' * 32}"):
        TokenWriter(tmp_path / "tokens", other, {"size": 64, "images": "a"}, resume=True)
    with pytest.raises(ValueError, match="nothing to resume"):
        TokenWriter(tmp_path / "other", MODEL, resume=True)


def test_an_interrupted_run_is_not_dropped_by_accident(tmp_path):
    interrupted(tmp_path / "tokens")
    before = contents(tmp_path / "tokens.partial")
    with pytest.raises(ValueError, match=r"holds 2 images of an interrupted run: --resume continues it, --overwrite"):
        TokenWriter(tmp_path / "tokens", MODEL)
    assert contents(tmp_path / "tokens.partial") == before
    write_all(tmp_path / "tokens", [5], overwrite=True)
    assert list(open_tokens(tmp_path / "tokens").names()) == ["5-0", "5-1"]


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_a_second_writer_of_one_output_is_refused(options, committed, tmp_path):
    with TokenWriter(tmp_path / "tokens", MODEL) as first:
        write_batch(first, 0)
        if committed:
            first.commit()
        with pytest.raises(ValueError, match=r"another encoding, process \d+ on .* is working in .*tokens.partial"):
            TokenWriter(tmp_path / "tokens", MODEL, **options)
        first.finish()
    assert list(open_tokens(tmp_path / "tokens").names()) == ["0-0", "0-1"]
    assert ".lock" not in contents(tmp_path / "tokens")


def test_existing_tokens_are_replaced_on_demand_and_at_the_end(tmp_path):
    write_all(tmp_path / "tokens", [0])
    before = contents(tmp_path / "tokens")
    with pytest.raises(ValueError, match="tokens exists; --overwrite replaces it"):
        TokenWriter(tmp_path / "tokens", MODEL)
    with TokenWriter(tmp_path / "tokens", MODEL, overwrite=True) as writer:
        write_batch(writer, 1)
        assert contents(tmp_path / "tokens") == before
        writer.finish()
    assert list(open_tokens(tmp_path / "tokens").names()) == ["1-0", "1-1"]
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


@pytest.mark.parametrize("name", ["tokens", "tokens.partial"])
@pytest.mark.parametrize("kind", ["file", "photos", "tokens and a photo", "link"])
def test_other_things_are_never_replaced(kind, name, tmp_path):
    place = tmp_path / name
    if kind == "file":
        place.write_text("mine")
    elif kind == "link":
        place.symlink_to(tmp_path / "elsewhere")
    else:
        if kind == "photos":
            place.mkdir()
        else:
            write_all(tmp_path / "made", [0]).rename(place)
        (place / "photo.jpg").write_text("mine")
    with pytest.raises(ValueError, match=f"{name} exists and is not a folder of tokens alone"):
        TokenWriter(tmp_path / "tokens", MODEL, overwrite=True)
    if kind == "link":
        assert place.readlink() == tmp_path / "elsewhere"
    else:
        assert (place if kind == "file" else place / "photo.jpg").read_text() == "mine"


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "tokens").mkdir()
    assert len(open_tokens(write_all(tmp_path / "tokens", [0]))) == 2


@pytest.mark.parametrize("out", [".", "/", ""])
def test_the_folder_needs_a_name(out):
    with pytest.raises(ValueError, match="must be a folder of its own"):
        TokenWriter(out, MODEL)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.full((1, 2, 3), 1000), "indices must lie between 0 and 999, got 1000"),
        (np.full((1, 2, 3), -1), "indices must lie between 0 and 999, got -1"),
        (np.zeros((2, 3), dtype=int), r"tokens must be b h w with a name each, got \(2, 3\) and 1 names"),
        (np.zeros((1, 2, 3, 2), dtype=int), "tokens must be b h w with"),
        (np.zeros((2, 2, 3), dtype=int), "with a name each"),
    ],
)
def test_wrong_tokens_are_refused_and_leave_no_trace(tokens, message, tmp_path):
    with TokenWriter(tmp_path / "tokens", MODEL) as writer:
        write_batch(writer, 0)
        with pytest.raises(ValueError, match=message):
            writer.write(tokens, ["a"], (8, 12))
        write_batch(writer, 1)
        writer.finish()
    assert np.array_equal(open_tokens(tmp_path / "tokens").array, np.concatenate([tokens_of(0), tokens_of(1)]))


def test_no_images_are_no_tokens(tmp_path):
    with TokenWriter(tmp_path / "tokens", MODEL) as writer:
        writer.write(np.empty(0), [], (1, 1), [("a", "b")])
        with pytest.raises(ValueError, match="no image was encoded, 1 could not be read"):
            writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_commits_happen_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "COMMIT_SECONDS", -1.0)
    writer = TokenWriter(tmp_path / "tokens", MODEL)
    for number in range(3):
        write_batch(writer, number)
        assert json.loads((writer.folder / "index.json").read_text())["n"] == 2 * number + 2
    writer.close()
