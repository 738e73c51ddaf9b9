"""Residual quantizers behind the calls of audio codecs: EnCodec, DAC and Mimi in transformers, and descript's DAC.

They take quantizers with ``channel_first=True``. Shapes: b batch, c channels, t frames, q levels.
"""

import math
from bisect import bisect_right
from itertools import accumulate
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from driftvq.functional import nearest
from driftvq.names import in_range, positive_int
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.residual_vq import ResidualVQ


class CodecAdapter(nn.Module):
    """Base of adapters to models that pass nothing but codes from ``encode`` to ``decode``.

    There is no gradient in codes. So in training ``decode`` recognises what was encoded and goes on with the quantised
    latents themselves, through which the decoder's gradient reaches the encoder.
    """

    def __init__(self) -> None:
        super().__init__()
        # What training encoded, with gradients, since it last decoded or gave the loss: codes ``b q t``, quantised
        # latents ``b c t``, the loss, and the codes' version then.
        self._passed: list[tuple[Tensor, Tensor, Tensor, int]] = []
        self._complete = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_passed": []}  # graphs cannot be copied

    @property
    def loss(self) -> Tensor:
        """The quantizers' loss of what was encoded last in training, weighted; to be added to the model's."""
        if not self._passed:
            raise ValueError("there is no loss: nothing was encoded in training with gradients")
        self._complete = True
        return torch.stack([loss for _, _, loss, _ in self._passed]).mean()

    def _encoded(self, codes_bqt: Tensor, quantized: Tensor, loss: Tensor) -> Tensor:
        """The codes ``q b t``; in training what belongs to them is kept, unless it has no gradient to give."""
        if self.training and torch.is_grad_enabled():
            if self._complete:
                self._passed, self._complete = [], False
            self._passed.append((codes_bqt, quantized, loss, codes_bqt._version))
        return codes_bqt.transpose(0, 1)

    def _known(self, codes_bqt: Tensor) -> Tensor | None:
        """In training, the quantised latents, with their gradient, that gave these codes."""
        if not self.training:
            return None
        self._complete = True
        for codes, quantized, _, version in reversed(self._passed):
            alike = codes.shape == codes_bqt.shape and codes._version == version  # else they were written into since
            # The first asks no device.
            if alike and (codes.data_ptr() == codes_bqt.data_ptr() or torch.equal(codes, codes_bqt)):
                return quantized
        return None


class EncodecQuantizer(CodecAdapter):
    """A quantizer for transformers' ``EncodecModel`` of so many latents per second.

    ``model.quantizer = as_encodec(vq, model.config.frame_rate)``; in training add ``model.quantizer.loss``.
    """

    codebook_size = property(attrgetter("vq.codebook_size"))  # of a level

    def __init__(self, vq: ResidualVQ, frame_rate: float) -> None:
        super().__init__()
        if not isinstance(frame_rate, int | float) or not 0 < frame_rate < math.inf:
            raise ValueError(f"frame_rate must be a number above 0, got {frame_rate!r}")
        self.vq, self.frame_rate = _checked(vq, "EnCodec"), frame_rate
        self.num_quantizers = vq.indices_per_position

    def get_num_quantizers_for_bandwidth(self, bandwidth: float | None = None) -> int:
        """Levels that a bandwidth in kbit/s pays for, at least one; all without a bandwidth."""
        if bandwidth is None or bandwidth <= 0:
            return self.num_quantizers
        bits_per_frame = bandwidth * 1000 / self.frame_rate * (1 + 1e-9)  # rounding costs no level
        ends = list(accumulate(map(math.log2, self.vq.sizes_per_index)))
        paid = bisect_right(ends, bits_per_frame)
        if paid == len(ends):  # there could be more like the last
            paid += int((bits_per_frame - ends[-1]) / math.log2(self.vq.sizes_per_index[-1]))
        return max(1, paid)

    def encode(self, embeddings: Tensor, bandwidth: float | None = None) -> Tensor:
        """Latents ``b c t`` to codes ``q b t``."""
        levels = self.get_num_quantizers_for_bandwidth(bandwidth)
        if levels > self.num_quantizers:
            raise ValueError(f"{bandwidth} kbit/s needs {levels} levels, the quantizer has {self.num_quantizers}")
        quantized, indices, loss = self.vq(embeddings, levels=levels)
        return self._encoded(indices.movedim(-1, 1), quantized, loss)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes ``q b t``, of any number of levels, to quantised latents ``b c t``."""
        codes_bqt = codes.transpose(0, 1)
        known = self._known(codes_bqt)
        return self.vq.indices_to_codes(codes_bqt.movedim(1, -1)) if known is None else known


class MimiQuantizer(CodecAdapter):
    """Quantizers for transformers' ``MimiModel``: of the first levels, one in Mimi, and of the others.

    Both see the same latents and their outputs add up. Training as with :class:`EncodecQuantizer`.
    """

    codebook_size = property(attrgetter("semantic.codebook_size"))  # of a level

    def __init__(self, semantic: ResidualVQ, acoustic: ResidualVQ) -> None:
        super().__init__()
        self.semantic, self.acoustic = _checked(semantic, "Mimi"), _checked(acoustic, "Mimi")
        for name in ("dim", "codebook_size"):
            if (first := getattr(semantic, name)) != (second := getattr(acoustic, name)):
                raise ValueError(f"Mimi's quantizers have one {name}, got {first} and {second}")
        self.num_semantic_quantizers = semantic.indices_per_position
        self.num_acoustic_quantizers = acoustic.indices_per_position
        self.max_num_quantizers = self.num_semantic_quantizers + self.num_acoustic_quantizers

    def encode(self, embeddings: Tensor, num_quantizers: int | None = None) -> Tensor:
        """Latents ``b c t`` to codes ``q b t``, the semantic levels first."""
        first, most = self.num_semantic_quantizers, self.max_num_quantizers
        levels = most if num_quantizers is None else positive_int("num_quantizers", num_quantizers)
        in_range("num_quantizers", levels, first, most)
        quantized, indices, loss = self.semantic(embeddings)
        if levels > first:
            more, others, other_loss = self.acoustic(embeddings, levels=levels - first)
            quantized, indices, loss = quantized + more, torch.cat([indices, others], dim=-1), loss + other_loss
        return self._encoded(indices.movedim(-1, 1), quantized, loss)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes ``b q t`` to quantised latents ``b c t``."""
        if (known := self._known(codes)) is not None:
            return known
        indices, first = codes.movedim(1, -1), self.num_semantic_quantizers
        quantized = self.semantic.indices_to_codes(indices[..., :first])
        if indices.shape[-1] > first:
            quantized = quantized + self.acoustic.indices_to_codes(indices[..., first:])
        return quantized


class DacQuantizer(nn.Module):
    """A quantizer for transformers' ``DacModel`` and descript's ``DAC``.

    ``z_q, codes, latents, commitment_loss, codebook_loss = q(z, n_quantizers)``: the model weights the two losses, so
    the quantizer's β does not count. With ``codebook_dim`` each level has its projections, as in DAC.
    """

    codebook_size = property(attrgetter("vq.codebook_size"))  # of a level

    def __init__(self, vq: ResidualVQ) -> None:
        super().__init__()
        self.vq = _checked(vq, "DAC")
        if vq.sees_neighbours:
            raise ValueError(f"DAC's levels have latents at all positions, those of {type(vq).__name__} do not")
        self.n_codebooks = vq.indices_per_position
        self.codebook_dim = [self.vq.part(level).codebook_dim for level in range(self.n_codebooks)]

    def forward(
        self, hidden_state: Tensor, n_quantizers: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Quantise latents ``b c t`` by so many levels, in training too, where theirs would ignore it.

        Returns quantised latents ``b c t``, codes ``b q t``, projected latents ``b (q·d) t``, and two scalars without a
        weight, which the model gives: the commitment, and whatever else trains the codebooks.
        """
        details = self.vq.details(hidden_state, levels=n_quantizers)
        latents = torch.cat([part.latents for part in details.parts], dim=-1).movedim(-1, 1)
        pull = sum(self.vq.part(i).term_weights[0] * part.terms.commitment for i, part in enumerate(details.parts))
        return details.quantized, details.indices.movedim(-1, 1), latents, details.terms.commitment, details.loss - pull

    def from_codes(self, audio_codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes ``b q t`` of the first levels to quantised latents, each level's codes ``b (q·d) t``, and the codes."""
        indices = audio_codes.movedim(1, -1)
        quantized = self.vq.indices_to_codes(indices)
        each = [self.vq.part(i).get_codes_from_indices(own) for i, own in enumerate(indices.unbind(dim=-1))]
        return quantized, torch.cat(each, dim=-1).movedim(-1, 1), audio_codes

    def from_latents(self, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projected latents ``b (q·d) t`` of the first levels to what :meth:`from_codes` gives for their codes."""
        dims, ends, width = self.codebook_dim, list(accumulate(self.codebook_dim)), latents.shape[1]
        if width not in ends:
            raise ValueError(f"latents must have the channels of whole levels, {dims}, got {width}")
        chunks = latents.movedim(1, -1).split(dims[: ends.index(width) + 1], dim=-1)
        return self.from_codes(torch.stack([self._nearest(i, chunk) for i, chunk in enumerate(chunks)], dim=1))

    def _nearest(self, level: int, z: Tensor) -> Tensor:
        quantizer = self.vq.part(level)
        if not isinstance(quantizer, CodebookQuantizer):
            raise ValueError(f"{type(quantizer).__name__} has no codebook in which to find the nearest code")
        z_nd = quantizer.to_code_space(z.flatten(end_dim=-2))
        return nearest(z_nd, quantizer.codebook, quantizer.metric).reshape(z.shape[:-1])


as_encodec, as_mimi, as_dac = EncodecQuantizer, MimiQuantizer, DacQuantizer


def _checked(vq: Any, package: str) -> ResidualVQ:
    if not isinstance(vq, ResidualVQ):
        raise ValueError(f"{package} needs a ResidualVQ, got {type(vq).__name__}")
    if not vq.channel_first:
        raise ValueError(f"{package}'s latents are b c t: ResidualVQ needs channel_first=True, got False")
    if vq.part(0).indices_per_position:
        raise ValueError(f"{package} has one code per level, {type(vq.part(0)).__name__} gives several")
    return vq
