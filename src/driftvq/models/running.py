"""A trained model at work: on its device, on as many pixels at once as the memory holds, larger images tile by tile.

``bytes = HELD_BYTES · pixels of the image + pixel_bytes · pixels at once``
``pixel_bytes = READ_BYTES + NETWORK_BYTES + LATENT_COPIES · (1 + q) · 4 · code_dim / downscale²``

with q indices per position (0 without that dimension). What lies above it does not grow with the image.

The last bits of a convolution depend on how many pixels it works on at once. A token folder therefore records its
batches, and decoding repeats them: on the same machine it computes what ``VQVAE.reconstruct`` computes for each.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from driftvq.data.images import READ_BYTES, USABLE, to_float, to_uint8
from driftvq.data.loader import ImageBatch
from driftvq.machine import available_memory, pick_device
from driftvq.models.vqvae import VQVAE

NETWORK_BYTES = {"small": 160, "paper": 560, "taming": 2250, "taming_f4": 2400, "taming_small": 600}
"""The most that a pixel takes inside each network, encoder or decoder, in float32; a test measures it."""
LATENT_COPIES = 5  # of the latents, while a quantizer works on them; once more for each index of a position
HELD_BYTES = READ_BYTES  # of an image beside the model: while it is read, afterwards less
WORKER_BYTES = READ_BYTES + 16  # one image that a worker reads, and two that wait
METRIC_BYTES, LPIPS_VGG_BYTES = 160, 1900  # at most, for a pixel of a pair; metrics take turns
TILE_PIXELS = 2**20  # of a tile with its margin; larger ones would not be faster
PROBED = 32  # positions a side of the probe that finds how far a network looks; half as far is never tiled


class Room(NamedTuple):
    """How many pixels a model is given at once and an image may have; between the two it is worked on in tiles."""

    at_once: int
    image: int
    margin: int | None = None  # positions around a tile that its result depends on; None if it sees the whole image

    @property
    def tile(self) -> int:
        """Pixels of a tile with its margin: half of the room is for the image itself."""
        return min(self.at_once // 2, TILE_PIXELS)


def load_model(path: str, device: str = "auto", batch_size: int | None = None) -> tuple[VQVAE, torch.device, int]:
    """A model (see ``VQVAE.from_pretrained``) to encode or decode with, where it is, and how many images it takes."""
    chosen = pick_device(device)
    model = VQVAE.from_pretrained(path, map_location=chosen).eval()
    # On a CPU one: then what it becomes cannot depend on its neighbours, at some cost in speed for small images.
    return model, chosen, batch_size or (1 if chosen.type == "cpu" else 16)


def pixel_bytes(model: VQVAE) -> int:
    """Memory that a pixel takes on its way into the model, through it and out."""
    per_position = 0 if model.quantizer is None else model.quantizer.indices_per_position
    latents = 4 * model.config.code_dim / model.downscale**2
    network = NETWORK_BYTES.get(model.config.network, max(NETWORK_BYTES.values()))
    return READ_BYTES + network + int(LATENT_COPIES * (1 + per_position) * latents)


def metric_bytes(metrics: Collection[str]) -> int:
    """Memory that a pixel takes while metrics are measured."""
    return LPIPS_VGG_BYTES if "lpips_vgg" in metrics else METRIC_BYTES


def find_room(model: VQVAE, workers: int = 0, more: int = 0, max_pixels: int | None = None) -> Room:
    """What the free memory (or ``max_pixels``) has room for, beside ``more`` bytes a pixel and the workers' images."""
    device = next(model.parameters()).device
    host = int(USABLE * available_memory())
    free = int(USABLE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else host
    beside = WORKER_BYTES * workers + more
    at_once = max(1, free // (pixel_bytes(model) + beside))
    margin = None if model.quantizer is None else find_margin(model)
    room = Room(at_once, at_once, margin)
    if margin is None or isqrt(room.tile) < (2 * margin + 1) * model.downscale:  # for one position and its margin
        return Room(max_pixels or at_once, max_pixels or at_once)
    held = (host - pixel_bytes(model) * room.tile) // (HELD_BYTES + beside)
    image = max_pixels or max(at_once, held)
    return Room(min(at_once, image), image, margin)


@torch.no_grad()
def find_margin(model: VQVAE) -> int | None:
    """How many positions around one the encoder's latents and the decoder's pixels depend on; None: on (nearly) all."""
    if model.quantizer is not None and model.quantizer.sees_neighbours:
        return None
    weight, side = next(model.encoder.parameters()), model.downscale
    image = torch.zeros(1, 3, 2 * side, PROBED * side, device=weight.device, dtype=weight.dtype)
    codes = torch.zeros(1, model.config.code_dim, 2, PROBED, device=weight.device, dtype=weight.dtype)
    found = max(_reach(model.encoder, image), -(-_reach(model.decoder, codes) // side))
    return found if found < PROBED // 2 else None


def _reach(network: nn.Module, zeros: Tensor) -> int:
    """How far NaN, which spreads as far as a value has influence, gets from one half of the input into the other's."""
    far = 0
    for probe in (zeros, zeros.mT):
        along = 3 if probe.shape[3] > probe.shape[2] else 2
        half = probe.clone()
        half.narrow(along, 0, half.shape[along] // 2).fill_(torch.nan)
        for broken in (half, half.flip(along)):
            spoiled = network(broken).isnan().any(dim=1).any(dim=0).any(dim=3 - along)
            far = max(far, int(spoiled.sum()) - len(spoiled) // 2)
    return far


def encode_pixels(model: VQVAE, images: Tensor, room: Room) -> Tensor:
    """Indices of uint8 images, of a size that the room has; in tiles, if there is no room for them at once."""
    device = next(model.parameters()).device
    if room.margin is None or images.shape[0] * images.shape[2] * images.shape[3] <= room.at_once:
        return model.encode(to_float(images.to(device)))
    side, grid = model.downscale, model.grid_size((images.shape[2], images.shape[3]))
    per_position = 0 if model.quantizer is None else model.quantizer.indices_per_position
    found = torch.empty(len(images), *grid, *([per_position] if per_position else []), dtype=torch.int64)
    for rows, columns in _tiles(grid, side, room):
        pixels = images[:, :, _scaled(rows.wide, side), _scaled(columns.wide, side)]
        part = model.encode(to_float(pixels.to(device))).cpu()
        found[:, rows.own, columns.own] = part[:, rows.inside, columns.inside]
    return found


def decode_pixels(model: VQVAE, indices: Tensor, size: tuple[int, int], room: Room) -> Tensor:
    """The uint8 images of indices, cropped to a height and width; in tiles, if there is no room for them at once."""
    device = next(model.parameters()).device
    if room.margin is None or len(indices) * size[0] * size[1] <= room.at_once:
        return to_uint8(model.decode(indices.to(device), size))
    side, grid = model.downscale, (indices.shape[1], indices.shape[2])
    images = torch.empty(len(indices), 3, *size, dtype=torch.uint8)
    for rows, columns in _tiles(grid, side, room):
        part = to_uint8(model.decode(indices[:, rows.wide, columns.wide].to(device))).cpu()
        place = images[:, :, _scaled(rows.own, side), _scaled(columns.own, side)]
        part = part[:, :, _scaled(rows.inside, side), _scaled(columns.inside, side)]
        place.copy_(part[:, :, : place.shape[2], : place.shape[3]])
    return images


class _Span(NamedTuple):
    """Rows or columns of a tile: its own, those with the margin that they depend on, and where the own are in these."""

    own: slice
    wide: slice
    inside: slice


def _tiles(grid: tuple[int, int], side: int, room: Room) -> Iterator[tuple[_Span, _Span]]:
    """Rows and columns of each tile, in positions."""
    margin = room.margin or 0
    step = isqrt(room.tile) // side - 2 * margin

    def spans(length: int) -> Iterator[_Span]:
        for start in range(0, length, step):
            end, first = min(start + step, length), max(0, start - margin)
            yield _Span(slice(start, end), slice(first, min(length, end + margin)), slice(start - first, end - first))

    return product(spans(grid[0]), spans(grid[1]))


def _scaled(part: slice, side: int) -> slice:
    return slice(part.start * side, part.stop * side)


class Rebuilt(NamedTuple):
    """A batch and what came back: uint8 images twice, their names, their indices, and what was left out on the way."""

    originals: Tensor
    images: Tensor
    names: list[str]
    indices: Tensor | None
    skipped: list[tuple[str, str]]


def reconstructions(model: VQVAE, batches: Iterable[ImageBatch], room: Room) -> Iterator[Rebuilt]:
    """Batches and what a model makes of them; one too small for it comes back empty, its images among the skipped."""
    device = next(model.parameters()).device
    with repeatable():
        for images, names, skipped in batches:
            reason = too_small(images, model)
            if reason is not None or not len(images):
                skipped = [*skipped, *((name, reason) for name in names if reason is not None)]
                yield Rebuilt(images[:0], images[:0], [], None, skipped)
            elif model.quantizer is None:
                yield Rebuilt(images, to_uint8(model.reconstruct(to_float(images.to(device)))), names, None, skipped)
            else:
                indices = encode_pixels(model, images, room)
                rebuilt = decode_pixels(model, indices, (images.shape[2], images.shape[3]), room)
                yield Rebuilt(images, rebuilt, names, indices, skipped)


def model_pairs(
    model: VQVAE, batches: Iterable[ImageBatch], device: str | torch.device = "cpu",
    skipped: Callable[[str, str], None] = lambda name, reason: None, room: Room | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:  # fmt: skip
    """Originals, reconstructions (both uint8) and indices as the evaluation takes them; ``skipped`` hears the rest."""
    for batch in reconstructions(model, batches, room or find_room(model)):
        for name, reason in batch.skipped:
            skipped(name, reason)
        if len(batch.originals):
            yield batch.originals.to(device), batch.images.to(device), batch.indices


def too_small(images: Tensor, model: VQVAE) -> str | None:
    """Why the model cannot take images of this size, or None."""
    height, width, least = images.shape[2], images.shape[3], model.downscale
    return f"{height}×{width} pixels, the model needs {least}×{least}" if min(height, width) < least else None


@contextmanager
def repeatable() -> Iterator[None]:
    """Let the GPU compute the same for the same batch; a CPU does anyway."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
