"""vector-quantize-pytorch's constructor words and calls, served by driftvq's quantizers.

``python -m tests.quantizers.vector_quantize_shim FOLDER`` runs a folder of that package's own tests, from a clone of
its repository, with this module in its place.
"""

import math
import sys
from collections import namedtuple
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import driftvq

Breakdown = namedtuple("Breakdown", ["commitment", "codebook_diversity", "orthogonal_reg", "inplace_optimize"])
Entropies = namedtuple("Entropies", ["per_sample_entropy", "batch_entropy", "commitment"])


class Shim(nn.Module):
    """A driftvq quantizer behind the other package's call."""

    def __init__(self, vq: driftvq.Quantizer) -> None:
        super().__init__()
        self.vq = vq

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("vq"), name)

    def indices_to_codes(self, indices: Tensor) -> Tensor:
        return self.vq.indices_to_codes(indices)

    def get_output_from_indices(self, indices: Tensor) -> Tensor:
        return self.indices_to_codes(indices)


def inner_options(
    *,
    decay: float = 0.8,
    commitment_weight: float = 1.0,
    kmeans_init: bool = False,
    kmeans_iters: int = 10,
    threshold_ema_dead_code: float = 0,
    use_cosine_sim: bool = False,
    rotation_trick: bool | None = None,
    stochastic_sample_codes: bool = False,
    sample_codebook_temp: float = 1.0,
) -> dict[str, Any]:
    """The words of a single codebook."""
    estimator: Any = "straight_through" if rotation_trick is False else "rotation"
    if stochastic_sample_codes:
        estimator = driftvq.Sampled(sample_codebook_temp)
    return {
        "quantizer": "cosine_ema_vq" if use_cosine_sim else "ema_vq",
        "decay": decay,
        "commitment_weight": commitment_weight,
        "kmeans_init": kmeans_init,
        "kmeans_iters": kmeans_iters,
        "threshold_ema_dead_code": threshold_ema_dead_code,
        "estimator": estimator,
    }


class VectorQuantize(Shim):
    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        heads: int = 1,
        separate_codebook_per_head: bool = False,
        accept_image_fmap: bool = False,
        channel_last: bool = True,
        **words: Any,
    ) -> None:
        options = inner_options(**words)
        name, first = options.pop("quantizer"), accept_image_fmap or not channel_last
        if heads == 1:
            vq = driftvq.make_quantizer(
                name, dim=dim, codebook_size=codebook_size, codebook_dim=codebook_dim, channel_first=first, **options
            )
        else:
            vq = driftvq.GroupedVQ(
                dim,
                codebook_size,
                heads * (codebook_dim or dim),
                groups=heads,
                quantizer=name,
                shared_codebook=not separate_codebook_per_head,
                channel_first=first,
                **options,
            )
        super().__init__(vq)
        self.commitment_weight = options["commitment_weight"]

    @property
    def _codebook(self) -> SimpleNamespace:
        """What holds the codes there, of one head: its names for ours."""
        book = self.vq.book
        return SimpleNamespace(embed=book(), embed_avg=book.cluster_sum, cluster_size=book.cluster_size)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        lens: Tensor | None = None,
        freeze_codebook: bool = False,
        ema_update: bool = True,
        return_loss_breakdown: bool = False,
    ) -> tuple[Any, ...]:
        details = self.vq.details(x, mask, lens=lens, freeze=freeze_codebook or not ema_update)
        terms, zero = details.terms, details.loss.new_zeros(())
        breakdown = Breakdown(terms.commitment, terms.entropy, terms.orthogonality, zero)
        return (*details[:3], breakdown) if return_loss_breakdown else details[:3]

    def update_ema_indices(self, x: Tensor, indices: Tensor, mask: Tensor | None = None) -> None:
        """The indices are those of the nearest codes, which a call finds again."""
        assert torch.equal(self.vq(x, mask).indices, indices)


class ResidualVQ(Shim):
    def __init__(
        self,
        *,
        dim: int,
        codebook_size: int | Sequence[int],
        num_quantizers: int | None = None,
        codebook_dim: int | None = None,
        shared_codebook: bool = False,
        quantize_dropout: bool = False,
        quantize_dropout_cutoff_index: int = 0,
        quantize_dropout_multiple_of: int = 1,
        beam_size: int | None = None,
        eval_beam_size: int | None = None,
        accept_image_fmap: bool = False,
        implicit_neural_codebook: bool = False,
        **words: Any,
    ) -> None:
        if implicit_neural_codebook:
            raise NotImplementedError("driftvq has no implicit neural codebooks")
        super().__init__(
            driftvq.ResidualVQ(
                dim,
                codebook_size,
                codebook_dim,
                num_quantizers=num_quantizers,
                shared_codebook=shared_codebook,
                quantizer_dropout=quantize_dropout,
                dropout_min_levels=quantize_dropout_cutoff_index + 1,
                dropout_multiple_of=quantize_dropout_multiple_of,
                beam_size=beam_size or 1,
                channel_first=accept_image_fmap,
                **inner_options(**words),
            )
        )
        self.beams = (beam_size or 1, eval_beam_size or beam_size or 1)

    def train(self, mode: bool = True) -> "ResidualVQ":
        self.vq.beam_size = self.beams[0 if mode else 1]
        return super().train(mode)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, freeze_codebook: bool = False, return_all_codes: bool = False
    ) -> tuple[Any, ...]:
        details = self.vq.details(x, mask, freeze=freeze_codebook)
        output = (details.quantized, details.indices, torch.stack([part.loss for part in details.parts]))
        return (*output, self.vq.get_codes_from_indices(details.indices)) if return_all_codes else output


class GroupedResidualVQ(Shim):
    def __init__(self, *, dim: int, groups: int, codebook_size: int, num_quantizers: int, **words: Any) -> None:
        options = inner_options(**words)
        inner = options.pop("quantizer")

        def levels(dim: int, codebook_size: int) -> driftvq.ResidualVQ:
            return driftvq.ResidualVQ(dim, codebook_size, num_quantizers=num_quantizers, quantizer=inner, **options)

        super().__init__(driftvq.GroupedVQ(dim, codebook_size, groups=groups, quantizer=levels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        details = self.vq.details(x)
        losses = torch.stack([torch.stack([level.loss for level in group.parts]) for group in details.parts])
        return details.quantized, torch.stack([group.indices for group in details.parts]), losses

    def indices_to_codes(self, indices: Tensor) -> Tensor:
        return self.vq.indices_to_codes(torch.cat(list(indices), dim=-1))


class FSQ(Shim):
    def __init__(
        self,
        levels: Sequence[int],
        dim: int | None = None,
        num_codebooks: int = 1,
        keep_num_codebooks_dim: bool | None = None,
        channel_first: bool = False,
        return_indices: bool = True,
        preserve_symmetry: bool = False,
    ) -> None:
        width, size = len(levels) * num_codebooks, math.prod(levels)
        options: dict[str, Any] = {"levels": levels, "symmetric": preserve_symmetry}
        if num_codebooks == 1 and not keep_num_codebooks_dim:
            vq: driftvq.Quantizer = driftvq.FSQ(dim or width, channel_first=channel_first, **options)
        else:
            options |= {"groups": num_codebooks, "quantizer": "fsq", "channel_first": channel_first}
            vq = driftvq.GroupedVQ(dim or width, size, width, **options)
        super().__init__(vq)
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        quantized, indices, _ = self.vq(x)
        return quantized, indices if self.return_indices else None


class LFQ(Shim):
    """Images and videos are channel first, sequences channel last, as there."""

    def __init__(
        self,
        *,
        dim: int | None = None,
        codebook_size: int,
        entropy_loss_weight: float = 0.1,
        commitment_loss_weight: float = 0.0,
        diversity_gamma: float = 1.0,
        num_codebooks: int = 1,
        frac_per_sample_entropy: float = 1.0,
        spherical: bool = False,
        codebook_scale: float = 1.0,
    ) -> None:
        bits = int(math.log2(codebook_size)) * num_codebooks
        options: dict[str, Any] = {
            "entropy_weight": entropy_loss_weight,
            "commitment_weight": commitment_loss_weight,
            "diversity_gamma": diversity_gamma,
            "entropy_fraction": frac_per_sample_entropy,
        }
        name = "bsq" if spherical else "lfq"
        if num_codebooks == 1:
            vq = driftvq.make_quantizer(name, dim=dim or bits, codebook_size=codebook_size, **options)
        else:
            vq = driftvq.GroupedVQ(dim or bits, codebook_size, bits, groups=num_codebooks, quantizer=name, **options)
        if codebook_scale != 1:
            vq.refine_(round(-math.log2(codebook_scale)))
        super().__init__(vq)
        self.images = False

    def forward(
        self,
        x: Tensor,
        inv_temperature: float = 100.0,
        mask: Tensor | None = None,
        return_loss_breakdown: bool = False,
    ) -> Any:
        self.images = x.ndim >= 4
        x = x.movedim(1, -1) if self.images else x
        self.vq.inv_temperature = inv_temperature
        if mask is not None:
            mask = mask.reshape(-1, *[1] * (x.ndim - 2)).expand(x.shape[:-1])
        details = self.vq.details(x, mask)
        quantized = details.quantized.movedim(-1, 1) if self.images else details.quantized
        output = (quantized, details.indices, details.loss)
        return (output, self._entropies(x, mask, details)) if return_loss_breakdown else output

    def _entropies(self, x: Tensor, mask: Tensor | None, details: driftvq.Details) -> Entropies:
        """The two entropies apart: once more, without the second."""
        gamma, self.vq.diversity_gamma = self.vq.diversity_gamma, 0.0
        single = self.vq.details(x, mask, freeze=True).terms.entropy
        self.vq.diversity_gamma = gamma
        return Entropies(single, (single - details.terms.entropy) / gamma, details.terms.commitment)

    def indices_to_codes(self, indices: Tensor) -> Tensor:
        codes = self.vq.indices_to_codes(indices)
        return codes.movedim(-1, 1) if self.images else codes


class ResidualFSQ(Shim):
    def __init__(self, *, dim: int, levels: Sequence[int], num_quantizers: int, **options: Any) -> None:
        options |= {"num_quantizers": num_quantizers, "quantizer": "fsq", "levels": levels}
        super().__init__(driftvq.ResidualVQ(dim, math.prod(levels), len(levels), **options))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        quantized, indices, _ = self.vq(x)
        return quantized, indices


class ResidualLFQ(Shim):
    def __init__(self, *, dim: int, codebook_size: int, num_quantizers: int, **options: Any) -> None:
        bits = int(math.log2(codebook_size))
        options |= {"num_quantizers": num_quantizers, "quantizer": "lfq"}
        super().__init__(driftvq.ResidualVQ(dim, codebook_size, bits, **options))

    def forward(self, x: Tensor) -> Any:
        details = self.vq.details(x)
        return details.quantized, details.indices, torch.stack([part.loss for part in details.parts])


class SimVQ(Shim):
    def __init__(
        self, *, dim: int, codebook_size: int, channel_first: bool = False, rotation_trick: bool = True
    ) -> None:
        estimator = "rotation" if rotation_trick else "straight_through"
        super().__init__(driftvq.SimVQ(dim, codebook_size, channel_first=channel_first, estimator=estimator))

    def forward(self, x: Tensor) -> Any:
        return tuple(self.vq(x))


class ResidualSimVQ(Shim):
    def __init__(self, *, dim: int, num_quantizers: int, codebook_size: int, channel_first: bool = False) -> None:
        options: dict[str, Any] = {"quantizer": "sim_vq", "estimator": "rotation", "channel_first": channel_first}
        super().__init__(driftvq.ResidualVQ(dim, codebook_size, num_quantizers=num_quantizers, **options))

    def forward(self, x: Tensor) -> Any:
        details = self.vq.details(x)
        return details.quantized, details.indices, torch.stack([part.loss for part in details.parts])


class LatentQuantize(Shim):
    """Each dimension has trained values of its own: a product of codebooks of one dimension."""

    def __init__(
        self,
        levels: int | Sequence[int],
        dim: int,
        commitment_loss_weight: float = 0.1,
        quantization_loss_weight: float = 0.1,
        num_codebooks: int = 1,
        codebook_dim: int = -1,
        optimize_values: bool = True,
    ) -> None:
        if isinstance(levels, int):
            if codebook_dim < 0:
                raise RuntimeError("one number of levels needs a codebook_dim")
            levels = [levels] * codebook_dim
        sizes = list(levels) * num_codebooks
        weight = commitment_loss_weight / max(quantization_loss_weight, 1e-9)
        super().__init__(
            driftvq.GroupedVQ(
                dim,
                sizes,
                len(sizes),
                groups=len(sizes),
                quantizer="vq",
                channel_first=True,
                commitment_weight=weight,
                freeze_codebook=not optimize_values,
            )
        )
        self.quantization_loss_weight, self.num_codebooks = quantization_loss_weight, num_codebooks
        self.register_buffer("basis", torch.tensor([1, *levels[:-1]]).cumprod(dim=0))
        self.register_buffer("levels", torch.tensor(levels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantized, places, loss = self.vq(x)
        indices = (places.unflatten(-1, (self.num_codebooks, -1)) * self.basis).sum(dim=-1)
        return quantized, indices if self.num_codebooks > 1 else indices[..., 0], loss * self.quantization_loss_weight

    def indices_to_codes(self, indices: Tensor) -> Tensor:
        each = indices if self.num_codebooks > 1 else indices[..., None]
        return self.vq.indices_to_codes((each[..., None] // self.basis % self.levels).flatten(-2))


class RandomProjectionQuantizer(Shim):
    """Fixed random projections, each with a fixed codebook, compared by cosine; gives indices only."""

    def __init__(self, *, dim: int, codebook_size: int, codebook_dim: int, num_codebooks: int = 1) -> None:
        whole = codebook_dim * num_codebooks

        def fixed(dim: int, codebook_size: int) -> driftvq.FactorizedVQ:
            return driftvq.FactorizedVQ(dim, codebook_size, codebook_dim, freeze_codebook=True)

        super().__init__(driftvq.GroupedVQ(whole, codebook_size, groups=num_codebooks, quantizer=fixed))
        self.project = nn.Linear(dim, whole).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.vq.eval()(self.project(x)).indices


MODULES = {
    "vector_quantize_pytorch": VectorQuantize,
    "residual_vq": ResidualVQ,
    "finite_scalar_quantization": FSQ,
    "lookup_free_quantization": LFQ,
    "latent_quantization": LatentQuantize,
}


def install() -> None:
    """Let ``import vector_quantize_pytorch`` find this module's classes."""
    package = ModuleType("vector_quantize_pytorch")
    for name, cls in list(globals().items()):
        if isinstance(cls, type) and issubclass(cls, Shim):
            setattr(package, name, cls)
    sys.modules["vector_quantize_pytorch"] = package
    for name, cls in MODULES.items():
        module = ModuleType(f"vector_quantize_pytorch.{name}")
        setattr(module, cls.__name__, cls)
        sys.modules[module.__name__] = module


if __name__ == "__main__":
    import pytest

    install()
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", *sys.argv[1:]]))
