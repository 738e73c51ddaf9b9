"""Models for other runtimes, ONNX and ``torch.export``: two graphs, images to indices and back, and their check."""

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from driftvq.files import make_folder, replacing
from driftvq.machine import quiet
from driftvq.models.pretrained import model_hash
from driftvq.models.vqvae import VQVAE
from driftvq.names import check_name, needed
from driftvq.quantizers import FSQ, Quantizer
from driftvq.quantizers.transformed_vq import TransformedCodes

OPSET = 18  # of the ONNX operators: old enough for the runtimes in use, and fixed so that a file does not change
TRACED_BATCH, TRACED_GRID = 2, (5, 6)  # the example; no two numbers are equal, so that none is taken for another
IMAGE_TOLERANCE = 1e-4  # largest difference of a pixel in [-1, 1]: an eightieth of a grey level
TIE_NOISE, TIE_DRAWS = 1e-4, 16  # an index may differ only where noise of this share of the latents changes torch's
CHECKS = ((1, (3, 4)), (TRACED_BATCH + 1, (TRACED_GRID[0] + 2, TRACED_GRID[1] + 5)))
"""Batches and grids of the check, other than what was traced."""

Traced = dict[str, ExportedProgram]
"""The graphs "encoder" and "decoder"; batch, height and width are free, images in multiples of the stride."""


class Runner(NamedTuple):
    """The two exported graphs as functions."""

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]


def export_model(model: VQVAE, folder: str | Path, format: str = "onnx", *, check: bool = True) -> dict[str, Any]:  # noqa: A002
    """Write ``encoder`` (images to indices) and ``decoder`` (indices to images) for another runtime.

    Batch, height and width are free; images come in multiples of the stride, float32 in [-1, 1], whatever the model's
    precision here. The files appear in the folder when all of them are written and, with ``check``, were run at another
    batch and size than the traced one and agree with torch. ``format`` is ``"onnx"`` or ``"torch"`` (a ``.pt2`` of
    torch.export). Returns what is also written to export.json: files, shapes, the model's hash, and the check's result.
    """
    write, suffix, runner = FORMATS[check_name("export format", format, FORMATS)]
    for package in ("onnxruntime", "onnxscript") if format == "onnx" else ():  # for the check, and for torch.onnx
        needed(package, f"ONNX needs {package}", "onnx")
    folder = Path(folder)
    make_folder(folder)
    about: dict[str, Any] = {
        **{"format": format, "opset": OPSET if format == "onnx" else None},
        **{name: f"{name}.{suffix}" for name in ("encoder", "decoder")},
        "images": "float32, b 3 h w, RGB in [-1, 1]; h and w multiples of the stride", "stride": model.downscale,
        "codebook_size": None if model.quantizer is None else model.quantizer.codebook_size,
        "model_hash": model_hash(model), "model": model.current_config.to_dict(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as name:
        temporary = Path(name)
        write(trace(model), temporary, {key: str(about[key]) for key in ("images", "stride", "model_hash")})
        if check:
            about["check"] = check_exported(model, runner(temporary / about["encoder"], temporary / about["decoder"]))
        (temporary / "export.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        for path in sorted(temporary.iterdir()):
            with replacing(folder / path.name) as temporary:
                path.replace(temporary)
    return about


class Encoder(nn.Module):
    """Images to indices, without the checks of :meth:`VQVAE.encode`, which depend on values."""

    def __init__(self, encoder: nn.Module, quantizer: Quantizer) -> None:
        super().__init__()
        self.encoder, self.quantizer = encoder, quantizer

    def forward(self, images: Tensor) -> Tensor:
        indices: Tensor = self.quantizer(self.encoder(images)).indices
        return indices


class Decoder(nn.Module):
    """Indices to images."""

    def __init__(self, decoder: nn.Module, quantizer: Quantizer) -> None:
        super().__init__()
        self.decoder, self.quantizer = decoder, quantizer

    def forward(self, indices: Tensor) -> Tensor:
        images: Tensor = self.decoder(self.quantizer.indices_to_codes(indices))
        return images


def trace(model: VQVAE) -> Traced:
    """Both graphs of a model, in float32 on the CPU, by ``torch.export``."""
    fixed = evaluation_copy(model)
    assert fixed.quantizer is not None
    batch, height, width = Dim("batch", max=2**20), Dim("height", max=2**14), Dim("width", max=2**14)
    images = torch.zeros(TRACED_BATCH, 3, *(side * model.downscale for side in TRACED_GRID))
    pixels = {0: batch, 2: model.downscale * height, 3: model.downscale * width}
    encoder, decoder = Encoder(fixed.encoder, fixed.quantizer), Decoder(fixed.decoder, fixed.quantizer)
    with torch.no_grad(), quiet():  # about torch's own internals
        indices, grid = fixed.encode(images), {0: batch, 1: height, 2: width}
        return {
            "encoder": torch.export.export(encoder, (images,), dynamic_shapes=(pixels,), strict=True),
            "decoder": torch.export.export(decoder, (indices,), dynamic_shapes=(grid,), strict=True),
        }


def evaluation_copy(model: VQVAE) -> VQVAE:
    """A frozen copy in float32 on the CPU, in which what depends on no input is computed once and for all."""
    if model.quantizer is None:
        raise ValueError("a plain autoencoder (quantizer 'none') has no indices to export")
    fixed = copy.deepcopy(model).to("cpu", torch.float32).eval().requires_grad_(False)
    for module in list(fixed.modules()):
        if isinstance(module, TransformedCodes):
            _fix_(module, "transformed")
            module.transform = nn.Identity()
        elif isinstance(module, FSQ):
            _fix_(module, "_basis")  # a cumulative product, which ONNX does not know
    return fixed


def _fix_(module: nn.Module, method: str) -> None:
    """Let a method without arguments return, from now on, what it returns now."""
    module.register_buffer(f"fixed{method}", getattr(module, method)().detach().clone(), persistent=False)
    setattr(module, method, MethodType(lambda self: getattr(self, f"fixed{method}"), module))


def _write_onnx(traced: Traced, folder: Path, metadata: dict[str, str]) -> None:
    for name, inputs, outputs in (("encoder", "images", "indices"), ("decoder", "indices", "images")):
        names: dict[str, Any] = {"input_names": [inputs], "output_names": [outputs]}
        with quiet("torch.onnx._internal.exporter._registration"):  # also of torchvision, which nothing here needs
            program = torch.onnx.export(traced[name], dynamo=True, opset_version=OPSET, verbose=False, **names)
        assert program is not None
        program.model.metadata_props.update(metadata)
        program.save(folder / f"{name}.onnx")  # above the 2 GB of one file, weights go to a file beside it


def _write_torch(traced: Traced, folder: Path, metadata: dict[str, str]) -> None:
    for name, program in traced.items():
        torch.export.save(program, folder / f"{name}.pt2", extra_files={"driftvq.json": json.dumps(metadata)})


def _load_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def _load_torch(path: Path) -> Callable[[Tensor], Tensor]:
    return torch.export.load(path).module()


def check_exported(model: VQVAE, runner: Runner) -> dict[str, Any]:
    """Compare the exported graphs with the model; a difference is an error.

    Indices must be equal. Where two codes are equally near up to rounding, runtimes that add in another order may
    choose differently: a place is a tie if noise of :data:`TIE_NOISE` makes torch itself change its choice, or if both
    choices mean the same code up to as much. Returns shapes, the largest difference of a pixel, ties and positions.
    """
    reference = evaluation_copy(model)
    generator = torch.Generator().manual_seed(0)
    shapes, worst, ties, positions = [], 0.0, 0, 0
    for batch, grid in CHECKS:
        size = tuple(side * model.downscale for side in grid)
        images = torch.rand(batch, 3, *size, generator=generator) * 2 - 1
        indices, got = reference.encode(images), runner.encode(images)
        if got.shape != indices.shape or got.dtype != indices.dtype:
            raise ValueError(f"exported indices are {got.dtype} {tuple(got.shape)}, not as in torch: {indices.dtype}")
        ties += _count_ties(reference, images, indices, got)
        positions += indices.numel()
        difference = (runner.decode(indices) - reference.decode(indices)).abs().max().item()
        if not difference <= IMAGE_TOLERANCE:
            allowed = f"at most {IMAGE_TOLERANCE} allowed"
            raise ValueError(f"exported images differ from torch by {difference:.2g}, {allowed}")
        worst = max(worst, difference)
        shapes.append([batch, 3, *size])
    return {"shapes": shapes, "largest_pixel_difference": worst, "indices": positions, "ties": ties}


def _count_ties(reference: VQVAE, images: Tensor, indices: Tensor, got: Tensor) -> int:
    """How many indices differ, all of them ties."""
    differs = got != indices
    if not differs.any():
        return 0
    quantizer, latents = reference.quantizer, reference.latents(images)
    assert quantizer is not None
    noise = latents.square().mean().sqrt() * TIE_NOISE
    same = (quantizer.indices_to_codes(indices) - quantizer.indices_to_codes(got)).abs().amax(dim=1) <= noise
    unsure = same.clone() if indices.ndim == same.ndim else same[..., None].repeat_interleave(indices.shape[-1], dim=-1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(TIE_DRAWS):
        unsure |= quantizer(latents + torch.randn(latents.shape, generator=generator) * noise).indices != indices
    wrong = int((differs & ~unsure).sum())
    if wrong:
        raise ValueError(f"exported indices differ from torch at {wrong} of {indices.numel()} places that are no ties")
    return int(differs.sum())


FORMATS: dict[str, tuple[Callable[[Traced, Path, dict[str, str]], None], str, Callable[..., Runner]]] = {
    "onnx": (_write_onnx, "onnx", lambda *paths: Runner(*map(_load_onnx, paths))),
    "torch": (_write_torch, "pt2", lambda *paths: Runner(*map(_load_torch, paths))),
}
"""How each format is written, how its files end, and what runs them."""
