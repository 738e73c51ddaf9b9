"""Files that anybody may have changed, and what reads them: one clear error, or something whole.

:data:`READERS` are the readers of archives, tokens, configs, records and images. :func:`fuzz` gives one of them sound
files with changes: bytes, values inside JSON, headers of archives whose sums are right again.
"""

import io
import json
import shutil
import tarfile
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from driftvq.data.images import BadImageError
from tests.limits import ends_within, memory_within

SECONDS, MEMORY = 120, 2 << 30
"""That a reader may take for a few kilobytes, and bytes: many times what it does, also on a busy machine."""
LONGEST = 2000
"""Characters of an error."""
AT_ONCE = 500
"""Trials with one seed."""

Change = tuple[Any, ...]
"""What is done to a file: its name, the kind of change and what it needs."""


class Reader(NamedTuple):
    """Something that reads files.

    Attributes:
        write: makes sound ones in a folder.
        read: reads all that the changed ones say; may raise one of ``errors``.
        errors: exactly these say that a file is bad.
    """

    write: Callable[[Path], None]
    read: Callable[[Path, set[str]], None]
    errors: tuple[type[Exception], ...] = (ValueError,)


@dataclass
class Fuzzed:
    """How often a reader was tried, and the changes that it did not stand, by what went wrong."""

    tried: int = 0
    failed: int = 0
    findings: dict[str, list[Change]] = field(default_factory=dict)


def fuzz(reader: Reader, seconds: float | None = None, examples: int | None = None, first_seed: int = 0) -> Fuzzed:
    """Try a reader for so many seconds of a processor, whatever else it does, or so often."""
    fuzzed = Fuzzed()
    deadline = None if seconds is None else process_time() + seconds
    with tempfile.TemporaryDirectory() as place, memory_within(MEMORY):
        folder = Path(place) / "files"
        folder.mkdir()
        reader.write(folder)
        sound = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        for number in count(first_seed):
            _some_trials(reader, folder, sound, fuzzed, number, examples or AT_ONCE, deadline)
            if deadline is None or process_time() >= deadline:
                return fuzzed
    raise AssertionError


def _some_trials(
    reader: Reader,
    folder: Path,
    sound: dict[str, bytes],
    fuzzed: Fuzzed,
    number: int,
    examples: int,
    deadline: float | None,
) -> None:
    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(changes(sorted(sound)), min_size=1, max_size=4))
    def attempt(made: list[Change]) -> None:
        if deadline is not None and process_time() >= deadline:
            return
        fuzzed.tried += 1
        problem = _complaint(reader, folder, sound, made)
        if problem:
            fuzzed.failed += 1
            known = fuzzed.findings.get(problem)
            if known is None or len(repr(made)) < len(repr(known)):
                fuzzed.findings[problem] = made

    attempt()


def _complaint(reader: Reader, folder: Path, sound: dict[str, bytes], made: list[Change]) -> str:
    """What the reader did that it must not; empty if nothing."""
    contents = dict(sound)
    for name, *change in made:
        contents[name] = changed(contents[name], *change)
    touched = {name for name, content in contents.items() if content != sound[name]}
    for name in touched:
        (folder / name).write_bytes(contents[name])
    try:
        with ends_within(SECONDS):
            reader.read(folder, touched)
    except reader.errors as error:
        text = str(error)
        if type(error) not in reader.errors:
            return _place(error)
        if "\n" in text or len(text) > LONGEST or str(folder) not in text:
            return f"an error that is long or names no file: {_place(error)}"
    except Exception as error:
        return _place(error)
    finally:
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            if str(path.relative_to(folder)) not in sound:
                path.unlink()
        for name in touched:
            (folder / name).write_bytes(sound[name])
    return ""


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.name}: {str(error)[:100]!r}"


WORDS = [b"", b"\0", b"\xff" * 9, b"-1", b"9" * 5000, b"\xc2\x85", b"\xe2\x80\xa8", b"\n", b"\\ud800"]
JSON_WORDS = [b"1e400", b"NaN", b"null", b"[" * 3000, b'{"a":' * 3000, b'"', b"}", b","]
NPY_WORDS = [b"'|O'", b"'<f8'", b"(" * 90, b"(4611686018427387904,)", b"True", b"-5", b"'<U9999999'", b"lambda: 0"]
YAML_WORDS = [
    *(b"&a [*a, *a]", b"*a", b"!!timestamp x", b"!!int ''", b"!!bool x", b"2026-99-99", b"!!python/name:os.system x"),
    *(b"? [1]\n: 2", b"<<: 3", b"0b", b"0x_", b"!!binary =", b"!!set {1}", b".inf", b"[" * 3000, b"{a: " * 3000, b"|"),
]
TAR_WORDS = [
    b"77777777777\0",
    b"\x80" + b"\xff" * 11,
    b"-0000001000",
    b"12 path=\n",
    b"x",
    b"g",
    b"L",
    b"K",
    b"S",
    b"5",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400])
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["vq", "fsq", "residual_vq", "grouped_vq", "multi_scale_vq", "none", "\ud800", "x" * 5000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
OPTIONS = ["levels", "num_quantizers", "groups", "quantizer", "codebook_dim", "scales", "codebook_sizes", "hidden"]


def changes(names: list[str]) -> st.SearchStrategy[Change]:
    """A change of one of these files."""
    return st.sampled_from(names).flatmap(lambda name: _changes_of(name).map(lambda change: (name, *change)))


def _changes_of(name: str) -> st.SearchStrategy[Change]:
    """What may happen to a file of its kind."""
    suffix = Path(name).suffix
    own = {".json": JSON_WORDS, ".jsonl": JSON_WORDS, ".npy": NPY_WORDS, ".yaml": YAML_WORDS, ".tar": TAR_WORDS}
    words = st.binary(max_size=8) | st.sampled_from(WORDS) | st.sampled_from(own.get(suffix, JSON_WORDS))
    places = st.integers(0, 1 << 20)
    kinds: list[st.SearchStrategy[Change]] = [
        st.tuples(st.just("bytes"), places, st.integers(0, 9), words),
        st.tuples(st.just("copy"), places, places, st.integers(1, 1500)),
        st.tuples(st.just("cut"), places),
    ]
    if suffix in (".json", ".jsonl"):
        options = st.dictionaries(st.sampled_from(OPTIONS), VALUES, max_size=2)
        kinds += [st.tuples(st.just("value"), places, VALUES | options), st.tuples(st.just("without"), places)]
    if suffix in (".json", ".yaml"):
        kinds += [st.tuples(st.just("line"), places, words)] * 3
    if suffix == ".tar":
        kinds += [st.tuples(st.just("header"), places, st.integers(0, 511), words)] * 3
    return st.one_of(kinds)


def changed(content: bytes, kind: str, *what: Any) -> bytes:
    """A file's content after a change; positions are taken modulo what there is."""
    data = bytearray(content)
    size = len(data) or 1
    if kind == "bytes":
        place, removed, new = what
        data[place % size : place % size + removed] = new
    elif kind == "copy":
        start, target, length = what
        data[target % size : target % size] = data[start % size :][:length]
    elif kind == "cut":
        del data[what[0] % size :]
    elif kind == "line":
        lines = content.split(b"\n")
        key, colon, _ = lines[what[0] % len(lines)].partition(b": ")
        lines[what[0] % len(lines)] = key + colon + what[1]
        return b"\n".join(lines)
    elif kind == "header":
        block, place, new = what
        start = block % max(1, size // 512) * 512
        new = new[: 512 - place]
        data[start + place : start + place + len(new)] = new
        _mend(data, start)
    else:
        return _with_value(content, kind, *what)
    return bytes(data)


def _mend(data: bytearray, start: int) -> None:
    """Make the sum of a tar header right."""
    if len(data) >= start + 512:
        data[start + 148 : start + 156] = b" " * 8
        data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])


def _with_value(content: bytes, kind: str, place: int, value: Any = None) -> bytes:
    """JSON, or one line of it, with another value at one of its places, or without it."""
    lines = content.split(b"\n") if b"\n{" in content else [content]
    number = place % len(lines)
    try:
        tree = json.loads(lines[number])
    except (ValueError, RecursionError):
        return content
    found = list(_places(tree))
    if not found:
        tree = value
    else:
        inside, key = found[place % len(found)]
        if kind == "value":
            inside[key] = value
        else:
            del inside[key]
    lines[number] = json.dumps(tree).encode()
    return b"\n".join(lines)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


def _write_archive(folder: Path) -> None:
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(folder / f"{kind}.tar", "w", format=kind) as tar:
            for name in ("a.png", "f" * 60 + "/" + "n" * 60 + ".png", "c.txt", "d.png"):
                file = io.BytesIO()
                Image.fromarray(np.full((3, 2, 3), len(name), np.uint8)).save(file, "PNG")
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(file.getvalue()), 0.5
                tar.addfile(info, io.BytesIO(file.getvalue()))


def _read_archive(folder: Path, touched: set[str]) -> None:
    from driftvq.data.shards import ShardSource

    for name in touched:
        length = (folder / name).stat().st_size
        source = ShardSource([folder / name], "all", 0.05, 0)
        ends = [start + size for start, size in zip(source._offsets, source._sizes, strict=True)]
        assert all(end <= length for end in ends), "a member beyond the archive"
        assert all(end <= start for end, start in zip(ends, source._offsets[1:], strict=False)), "members overlap"
        for number in range(len(source)):
            with suppress(BadImageError):
                assert source.read(number).ndim == 3
            assert source.name(number).startswith(name)
        assert all("\n" not in reason and len(reason) < LONGEST for _, reason in source.problems)


def _write_tokens(folder: Path) -> None:
    from driftvq.tokens import TokenModel, TokenWriter

    with TokenWriter(folder / "t", TokenModel("ab" * 32, 1000, 4, 3)) as writer:
        for side in (1, 2):
            writer.write(np.full((2, side, 2, 3), side), ["a.jpg", "b.jpg"], (4 * side, 8))
        writer.finish()


def _read_tokens(folder: Path, touched: set[str]) -> None:
    from driftvq.tokens import open_tokens

    tokens = open_tokens(folder / "t")
    names, arrays = list(tokens.names()), list(tokens)
    assert sum(len(rows) for rows in tokens.batches()) == len(names) == len(arrays)
    assert all(array.ndim == 2 + bool(tokens.index.model.indices_per_position) for array in arrays)


def _write_configs(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    from driftvq.models import VQVAE, ModelConfig
    from driftvq.training.config import TrainConfig
    from driftvq.training.settings import write_settings

    config = ModelConfig(quantizer="vq", codebook_size=16, code_dim=4, quantizer_options={"kmeans_init": False})
    VQVAE(config).save_pretrained(folder)
    (folder / "README.md").unlink()
    weights = folder / "model.safetensors"
    save_file(load_file(weights), weights)  # without the copy of the config, which would refuse each change unseen
    write_settings(folder / "config.yaml", TrainConfig(quantizer_options={"levels": [8, 5]}).to_dict())


def _read_configs(folder: Path, touched: set[str]) -> None:
    from driftvq.models.model_config import ModelConfig
    from driftvq.models.pretrained import load_pretrained
    from driftvq.training.settings import make_config, read_settings, write_settings

    if touched - {"config.yaml"}:
        load_pretrained(folder)
    if "config.yaml" in touched:
        found = read_settings(folder / "config.yaml")
        with suppress(ValueError):  # which names the setting
            config = make_config(found)
            ModelConfig(**config.model_fields())
            write_settings(folder / "again.yaml", config.to_dict())
            assert make_config(read_settings(folder / "again.yaml")) == config


def _write_records(folder: Path) -> None:
    from tests.report.synthetic import METHODS, write_comparison

    write_comparison(folder / "c", sweep=None, seeds=(0, 1), images=1, size=8, name="x")
    kept = {f"{method[0]}--None--seed{number}" for method in METHODS[:2] for number in (0, 1)}
    for cell in (folder / "c" / "cells").iterdir():
        if cell.name not in kept:
            shutil.rmtree(cell)
    for image in folder.rglob("*.png"):
        image.unlink()
    for path in folder.rglob("metrics.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[-4:]))
    for path in folder.rglob("codes.json"):
        codes = {"counts": [3, 0, 1], "points": [[0.0, 1.0]], "point_codes": [2], "latents": [[0.5, 0.5]]}
        path.write_text(json.dumps({**json.loads(path.read_text()), **codes}))


def _read_records(folder: Path, touched: set[str]) -> None:
    from driftvq.files import read_records
    from driftvq.records.runs import drop_records_after
    from driftvq.report import load_comparison, results_table, write_report

    comparison = load_comparison(folder / "c")
    for style in ("markdown", "json", "csv", "latex"):
        results_table(comparison, style)
    page = write_report([folder / "c"], folder / "page.html")
    assert page.stat().st_size > 1000
    for path in folder.rglob("metrics.jsonl"):
        drop_records_after(path, 50)
        assert all(record["step"] <= 50 for record in read_records(path))


def _write_images(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 31, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM"):
        Image.fromarray(pixels).save(folder / f"x.{kind.lower()}", kind)


def _read_images(folder: Path, touched: set[str]) -> None:
    from driftvq.data.images import read_image

    for name in sorted(touched):
        pixels = read_image(folder / name, 16)
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.size


READERS = {
    "tar": Reader(_write_archive, _read_archive),
    "tokens": Reader(_write_tokens, _read_tokens),
    "config": Reader(_write_configs, _read_configs),
    "records": Reader(_write_records, _read_records, (ValueError, FileNotFoundError)),
    "images": Reader(_write_images, _read_images, (BadImageError,)),
}
