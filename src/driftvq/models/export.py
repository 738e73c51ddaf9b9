"""Models for other runtimes: ONNX and ``torch.export``."""

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from driftvq.files import make_folder, replacing
from driftvq.models.pretrained import model_hash
from driftvq.models.tracing import Runner, Traced, check_exported, onnx_runner, torch_runner, trace
from driftvq.models.vqvae import VQVAE
from driftvq.names import check_name, install_command

OPSET = 18
"""The version of the ONNX operators: old enough for the runtimes in use, and fixed so that a file does not change."""

DESCRIPTION = "export.json"

Write = Callable[[Traced, Path, dict[str, str]], None]


def export_model(model: VQVAE, folder: str | Path, format: str = "onnx", *, check: bool = True) -> dict[str, Any]:  # noqa: A002
    """Write ``encoder`` (images to indices) and ``decoder`` (indices to images) for another runtime.

    Batch, height and width are free; images come in multiples of the stride, float32 in [-1, 1]. The files appear in
    the folder when all of them are written and, with ``check``, agree with torch.

    Args:
        model: to export; in float32, whatever its precision here.
        folder: made if need be.
        format: ``"onnx"`` or ``"torch"`` (a ``.pt2`` of torch.export).
        check: run the files, at another batch and size than the traced one, and compare with the model.

    Returns:
        What is also written to export.json: files, shapes, the model's hash, and what the check found.
    """
    write, suffix, runner = FORMATS[check_name("export format", format, FORMATS)]
    if format == "onnx":
        _check_onnx_packages()
    folder = Path(folder)
    make_folder(folder)
    about: dict[str, Any] = {
        "format": format,
        "opset": OPSET if format == "onnx" else None,
        "encoder": f"encoder.{suffix}",
        "decoder": f"decoder.{suffix}",
        "images": "float32, b 3 h w, RGB in [-1, 1]; h and w multiples of the stride",
        "stride": model.downscale,
        "codebook_size": None if model.quantizer is None else model.quantizer.codebook_size,
        "model_hash": model_hash(model),
        "model": model.current_config.to_dict(),
    }
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as name:
        temporary = Path(name)
        write(trace(model), temporary, {key: str(about[key]) for key in ("images", "stride", "model_hash")})
        if check:
            about["check"] = check_exported(model, runner(temporary / about["encoder"], temporary / about["decoder"]))
        (temporary / DESCRIPTION).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        for path in sorted(temporary.iterdir()):
            with replacing(folder / path.name) as temporary:
                path.replace(temporary)
    return about


def _check_onnx_packages() -> None:
    try:
        import onnxruntime  # noqa: F401 - the check needs it
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise ValueError(f"ONNX needs extra packages ({error}): {install_command('onnx')}") from error


def _write_onnx(traced: Traced, folder: Path, metadata: dict[str, str]) -> None:
    for name, inputs, outputs in (("encoder", "images", "indices"), ("decoder", "indices", "images")):
        with _quiet():
            program = torch.onnx.export(
                getattr(traced, name),
                dynamo=True,
                opset_version=OPSET,
                input_names=[inputs],
                output_names=[outputs],
                verbose=False,
            )
        assert program is not None
        program.model.metadata_props.update(metadata)
        program.save(folder / f"{name}.onnx")  # above the 2 GB of one file, weights go to a file beside it


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says about its own internals, and about an absent torchvision that nothing here needs."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _write_torch(traced: Traced, folder: Path, metadata: dict[str, str]) -> None:
    for name, program in traced._asdict().items():
        torch.export.save(program, folder / f"{name}.pt2", extra_files={"driftvq.json": json.dumps(metadata)})


FORMATS: dict[str, tuple[Write, str, Callable[[Path, Path], Runner]]] = {
    "onnx": (_write_onnx, "onnx", onnx_runner),
    "torch": (_write_torch, "pt2", torch_runner),
}
"""How each format is written, how its files end, and what runs them."""
