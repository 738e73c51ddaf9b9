"""The VQ-VAE: a network and any quantizer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.models.architecture import NETWORKS, build_quantizer
from driftvq.models.model_config import ModelConfig
from driftvq.names import check_name
from driftvq.quantizers.codebook import CodebookQuantizer

RANGE_SLACK = 1e-3  # how far images may leave [-1, 1]: the rounding of a conversion, not a wrong range


def check_images(images: Tensor, least: int) -> None:
    """Refuse what is not a batch of images in [-1, 1], ``b 3 h w``, of at least ``least`` pixels a side."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        hint = "; convert bytes by x / 127.5 - 1" if got == torch.uint8 else ""
        raise ValueError(f"images must be a floating-point tensor in [-1, 1], got {got}{hint}")
    if images.is_meta:
        raise ValueError("images must have values, got a tensor on the device 'meta', which has none")
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be b 3 h w, got shape {tuple(images.shape)}")
    if min(images.shape[2:]) < least:
        raise ValueError(f"images must be at least {least}×{least} pixels, got {images.shape[2]}×{images.shape[3]}")
    if torch.compiler.is_compiling() or images.numel() == 0:  # a compiled graph cannot branch on values
        return
    low, high = (float(value) for value in images.detach().aminmax())
    if not (low >= -1 - RANGE_SLACK and high <= 1 + RANGE_SLACK):
        raise ValueError(f"images must lie in [-1, 1], got values from {low:g} to {high:g}")


class VQVAEOutput(NamedTuple):
    """What a forward pass gives: ``images`` like the input, and what there was on the way."""

    images: Tensor
    indices: Tensor | None  # None for a plain autoencoder
    loss: Tensor  # the quantizer's, β included
    latents: Tensor  # the encoder's


class Times(nn.Module):
    """A constant factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class VQVAE(nn.Module):
    """A tokenizer of images in [-1, 1], ``b 3 h w``; in a plain autoencoder, ``quantizer`` is None.

    One position of the indices stands for ``downscale`` pixels a side. Sizes it does not divide are padded at the
    right and the bottom by repeating the edge, and cropped back.

    >>> model = VQVAE(ModelConfig(codebook_size=256)).eval()
    >>> images = torch.rand(2, 3, 64, 48) * 2 - 1
    >>> indices = model.encode(images)
    >>> indices.shape
    torch.Size([2, 16, 12])
    >>> torch.equal(model.decode(indices), model.reconstruct(images))
    True
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        check_name("network", config.network, NETWORKS)
        self.config = config
        self.encoder, self.decoder, self.downscale = NETWORKS[config.network](config.code_dim)
        if config.latent_scale != 1:
            self.encoder = nn.Sequential(self.encoder, Times(config.latent_scale))
            self.decoder = nn.Sequential(Times(1 / config.latent_scale), self.decoder)
        self.quantizer = build_quantizer(config)
        self._encoder_rests = False

    def rest_encoder_(self) -> None:
        """From now on the encoder neither learns nor changes statistics of its own: the latents stay where they are."""
        self.encoder.requires_grad_(False).eval()
        self._encoder_rests = True

    def train(self, mode: bool = True) -> "VQVAE":
        """Training or evaluation mode; an encoder that rests stays in evaluation."""
        super().train(mode)
        if self._encoder_rests:
            self.encoder.eval()
        return self

    def forward(self, images: Tensor, quantize: bool = True) -> VQVAEOutput:
        """Reconstruct images in [-1, 1], with gradients; without ``quantize`` as if this were a plain autoencoder."""
        check_images(images, self.downscale)
        latents = self._latents(images)
        if self.quantizer is None or not quantize:
            codes, indices, loss = latents, None, latents.new_zeros((), dtype=torch.float32)
        else:
            codes, indices, loss = self.quantizer(latents)
            loss = loss / self.config.latent_scale**2
        return VQVAEOutput(self._images(codes, tuple(images.shape[2:])), indices, loss, latents)

    def encode(self, images: Tensor) -> Tensor:
        """The int64 indices of images: ``b h w``, or ``b h w q`` for a quantizer with q indices per position."""
        check_images(images, self.downscale)
        if self.quantizer is None:
            cure = "driftvq.models.quantize_afterwards gives it a codebook"
            raise ValueError(f"a plain autoencoder (quantizer 'none') has no indices; {cure}")
        with self._evaluating():
            indices: Tensor = self.quantizer(self._latents(images)).indices
        return indices

    def decode(self, indices: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """The images in [-1, 1] of indices as :meth:`encode` gives them; ``size`` is a height and width to crop to."""
        if self.quantizer is None:
            raise ValueError("a plain autoencoder (quantizer 'none') cannot decode indices: it has no codebook")
        if not isinstance(indices, Tensor) or indices.dtype == torch.bool or indices.is_floating_point():
            got = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
            raise ValueError(f"indices must be a tensor of integers, got {got}")
        per_position = self.quantizer.indices_per_position
        if indices.ndim != (4 if per_position else 3):
            layout = f"b h w {per_position}" if per_position else "b h w"
            raise ValueError(f"indices must be {layout}, got shape {tuple(indices.shape)}")
        most = (indices.shape[1] * self.downscale, indices.shape[2] * self.downscale)
        if size is not None and (len(size) != 2 or not (1 <= size[0] <= most[0] and 1 <= size[1] <= most[1])):
            raise ValueError(f"size must be a height and a width of at most {most}, got {size!r}")
        with self._evaluating():
            return self._images(self.quantizer.indices_to_codes(indices.long()), size)

    def latents(self, images: Tensor) -> Tensor:
        """What the encoder makes of images before any quantizer, ``b code_dim h w``, in evaluation."""
        check_images(images, self.downscale)
        with self._evaluating():
            return self._latents(images)

    def reconstruct(self, images: Tensor) -> Tensor:
        """The images as the model gives them back: exactly ``decode(encode(images), size)``."""
        size = (images.shape[-2], images.shape[-1]) if isinstance(images, Tensor) and images.ndim == 4 else None
        if self.quantizer is not None:
            return self.decode(self.encode(images), size)
        with self._evaluating():
            return self._images(self.latents(images), size)

    def save_pretrained(self, folder: str | Path, *, card: Mapping[str, Any] | None = None) -> Path:
        """Save config, weights and a model card; see :func:`driftvq.models.pretrained.save_pretrained`."""
        from driftvq.models.pretrained import save_pretrained  # which needs this class, as the hub does

        return save_pretrained(self, folder, card=card)

    @staticmethod
    def from_pretrained(
        path_or_hub_id: str | Path, *, revision: str | None = None, map_location: str | torch.device = "cpu"
    ) -> "VQVAE":
        """A saved model, in evaluation mode; only safetensors and JSON are read, nothing is executed.

        It is named by its folder or a run's, as ``user/name`` on the Hugging Face hub (where ``revision`` is a branch,
        tag or commit), or as ``starter``, the small tokenizer that comes with the package.
        """
        from driftvq.models.hub import find_model
        from driftvq.models.pretrained import load_pretrained

        return load_pretrained(find_model(path_or_hub_id, revision), map_location)

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Share the model on the Hugging Face hub; see :func:`driftvq.models.hub.push_to_hub`."""
        from driftvq.models.hub import push_to_hub

        return push_to_hub(self, repo_id, private=private, token=token)

    def grid_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the indices of images of this height and width."""
        return -(-size[0] // self.downscale), -(-size[1] // self.downscale)

    @property
    def current_config(self) -> ModelConfig:
        """What builds this model as it is now: a codebook may have grown since it was made."""
        size = self.config.codebook_size if self.quantizer is None else self.quantizer.codebook_size
        return replace(self.config, codebook_size=size)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights, to which images are converted."""
        return next(self.encoder.parameters()).dtype

    def _latents(self, images: Tensor) -> Tensor:
        below, right = -images.shape[2] % self.downscale, -images.shape[3] % self.downscale
        images = images.to(self.dtype)
        if below or right:
            images = F.pad(images, (0, right, 0, below), mode="replicate")
        latents: Tensor = self.encoder(images)
        return latents

    def _images(self, codes: Tensor, size: tuple[int, ...] | None) -> Tensor:
        # Under autocast the decoder ends in half precision; losses and metrics want the precision of the weights.
        images: Tensor = self.decoder(codes.to(self.dtype)).to(self.dtype)
        return images if size is None else images[:, :, : size[0], : size[1]]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation behaviour without gradients, whatever mode each part is in; the modes come back afterwards."""
        training = [module for module in self.modules() if module.training]
        try:
            for module in training:
                module.training = False
            with torch.no_grad():
                yield
        finally:
            for module in training:
                module.training = True


def code_tensors(module: nn.Module) -> list[Tensor]:
    """The tensors that hold codes in a quantizer or a model, one per codebook; none for a fixed grid."""
    return [part.book.stored for part in module.modules() if isinstance(part, CodebookQuantizer)]


def count_parameters(model: VQVAE) -> dict[str, int]:
    """Numbers that were learned, per part and in total; codes count whether an optimizer moves them or not."""
    codes = [] if model.quantizer is None else code_tensors(model.quantizer)
    own = [] if model.quantizer is None else [p for p in model.quantizer.parameters() if all(p is not c for c in codes)]
    encoder, decoder = model.encoder.parameters(), model.decoder.parameters()
    parts = {"encoder": encoder, "quantizer": own, "codes": codes, "decoder": decoder}
    counts = {name: sum(tensor.numel() for tensor in tensors) for name, tensors in parts.items()}
    return counts | {"total": sum(counts.values())}
