"""What vector-quantize-pytorch's own suite asks of its classes, asked of driftvq's through the shim.

Its behaviours in other words and smaller shapes; docs/interop.md has the table of what is left out and why.
"""

import math
from itertools import product
from typing import Any

import pytest
import torch
from vector_quantize_pytorch import VectorQuantize

from driftvq import NSVQ
from tests.quantizers import vector_quantize_shim as shim

DIM, SIZE, SHAPE, IMAGE = 16, 32, (1, 96, 16), (1, 16, 6, 6)
LEVELS = [8, 5, 5, 5]
Words = dict[str, Any]


def one(name: str, shape: tuple[int, ...], **words: Any) -> tuple[str, tuple[int, ...], Words]:
    return name, shape, words


def sizes(**words: Any) -> Words:
    return {"dim": DIM, "codebook_size": SIZE, **words}


TRAINS = [
    *(
        one("VectorQuantize", SHAPE, **sizes(use_cosine_sim=cosine, rotation_trick=rotation, decay=0.8))
        for cosine, rotation in product((True, False), repeat=2)
    ),
    one("VectorQuantize", SHAPE, **sizes(codebook_dim=4)),
    one("VectorQuantize", SHAPE, **sizes(use_cosine_sim=True)),
    one("VectorQuantize", SHAPE, **sizes(threshold_ema_dead_code=2)),
    one(
        "VectorQuantize",
        IMAGE,
        **sizes(codebook_dim=4, heads=4, separate_codebook_per_head=True, accept_image_fmap=True),
    ),
    one(
        "ResidualVQ",
        SHAPE,
        **sizes(num_quantizers=8, stochastic_sample_codes=True, sample_codebook_temp=0.1, shared_codebook=True),
    ),
    one("ResidualVQ", SHAPE, **sizes(num_quantizers=4, kmeans_init=True, kmeans_iters=10)),
    one("GroupedResidualVQ", SHAPE, **sizes(num_quantizers=8, groups=2)),
    one("LFQ", (1, 32, 16), codebook_size=SIZE, dim=16),
    one("LFQ", (1, 16, 3, 4, 4), codebook_size=SIZE, dim=16),
]
"""Trained for a step, with latents that want a gradient and with others that do not."""

ROUND_TRIPS = [
    one("SimVQ", SHAPE, **sizes()),
    one("ResidualSimVQ", IMAGE, **sizes(num_quantizers=4, channel_first=True)),
    one("ResidualFSQ", SHAPE, dim=DIM, levels=[8, 5, 5, 3], num_quantizers=8),
    one("ResidualLFQ", SHAPE, **sizes(num_quantizers=8)),
    *(one("FSQ", (1, 64, 4), levels=LEVELS, preserve_symmetry=symmetric) for symmetric in (True, False)),
    *(one("FSQ", shape, levels=LEVELS) for shape in ((1, 64, 4), (1, 8, 8, 4))),
    *(one("FSQ", shape, levels=LEVELS, dim=16, channel_first=True) for shape in ((1, 16, 64), (1, 16, 8, 8))),
    *(
        one("FSQ", shape, levels=LEVELS, num_codebooks=2, keep_num_codebooks_dim=keep)
        for shape, keep in product(((1, 64, 8), (1, 8, 8, 8)), (None, True))
    ),
    *(
        one("FSQ", shape, levels=LEVELS, dim=16, channel_first=True, num_codebooks=2)
        for shape in ((1, 16, 64), (1, 16, 8, 8))
    ),
    *(
        one("LFQ", (1, 5, 6, 6), codebook_size=32, dim=5, codebook_scale=scale, spherical=spherical)
        for scale, spherical in product((1.0, 0.5), (True, False))
    ),
    one("LFQ", (1, 16, 6, 6), codebook_size=16, dim=16, num_codebooks=4),
    *(
        one("LatentQuantize", shape, levels=levels, dim=16, **words)
        for shape, levels, words in (
            ((1, 16, 6, 6), [5, 5, 8], {}),
            ((1, 16, 2, 4, 4), [5, 5, 8], {}),
            ((1, 16, 20), [5, 5, 8], {}),
            ((1, 16, 6, 6), [5, 5, 8], {"optimize_values": False}),
            ((1, 16, 6, 6), [5, 5, 5], {}),
            ((1, 16, 6, 6), 5, {"codebook_dim": 3}),
            ((1, 16, 20), [5, 5, 8], {"num_codebooks": 4}),
        )
    ),
]
"""Indices give back what the call gave."""


def make(name: str, words: Words) -> shim.Shim:
    torch.manual_seed(0)
    module: shim.Shim = getattr(shim, name)(**words)
    return module


@pytest.mark.parametrize(("name", "shape", "words"), TRAINS)
@pytest.mark.parametrize("gradient", [True, False])
def test_trains(name: str, shape: tuple[int, ...], words: Words, gradient: bool) -> None:
    vq = make(name, words)
    x = torch.randn(shape, requires_grad=gradient)
    quantized, indices, loss = vq(x)
    assert quantized.shape == x.shape
    assert (indices >= 0).all()
    assert loss.isfinite().all()
    if gradient:
        (quantized.sum() + loss.sum()).backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()


@pytest.mark.parametrize(("name", "shape", "words"), ROUND_TRIPS)
@pytest.mark.parametrize("training", [True, False])
def test_indices_give_back_the_output(name: str, shape: tuple[int, ...], words: Words, training: bool) -> None:
    vq = make(name, words).train(training)
    x = torch.randn(shape)
    quantized, indices, *losses = vq(x)
    assert quantized.shape == x.shape
    rotated = training and "SimVQ" in name
    assert torch.allclose(vq.indices_to_codes(indices), quantized, rtol=0, atol=1e-5 if rotated else 0)
    if training and name == "LatentQuantize":
        losses[0].backward()
    if words.get("num_codebooks", 1) > 1:
        assert indices.shape[-1] == words["num_codebooks"]


def test_one_codebook_in_evaluation() -> None:
    vq = make("VectorQuantize", sizes(decay=0.8)).eval()
    quantized, indices, _ = vq(torch.randn(SHAPE))
    assert torch.allclose(quantized, vq.get_output_from_indices(indices))


def test_lengths() -> None:
    vq = make("VectorQuantize", sizes(decay=1.0))
    x = torch.randn(SHAPE)
    quantized, indices, loss = vq(x[:, :40])
    masked, masked_indices, masked_loss = vq(x, lens=torch.tensor([40]))
    assert torch.allclose(loss, masked_loss)
    assert torch.allclose(quantized, masked[:, :40])
    assert torch.equal(indices, masked_indices[:, :40])
    assert (masked[:, 40:] == 0).all()
    assert (masked_indices[:, 40:] == -1).all()


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_residual_levels_decode_in_a_frozen_training_step_too(cosine: bool, training: bool, shared: bool) -> None:
    words = sizes(num_quantizers=8, use_cosine_sim=cosine, shared_codebook=shared, implicit_neural_codebook=False)
    vq = make("ResidualVQ", words).train(training)
    quantized, indices, losses, codes = vq(torch.randn(SHAPE), freeze_codebook=training, return_all_codes=True)
    assert losses.shape == (8,)
    assert codes.shape == (8, *SHAPE)
    assert torch.allclose(quantized, vq.get_output_from_indices(indices), atol=1e-5)


def test_levels_of_different_sizes() -> None:
    vq = make("ResidualVQ", {"dim": 2, "codebook_size": (5, 128, 256)})
    quantized, indices, _ = vq(torch.randn(2, 2, 2), freeze_codebook=True)
    assert torch.allclose(quantized, vq.get_output_from_indices(indices), atol=1e-5)


@pytest.mark.parametrize("codebook_dim", [16, 8])
def test_beams(codebook_dim: int) -> None:
    words = sizes(codebook_dim=codebook_dim, num_quantizers=8, quantize_dropout=True, beam_size=2, eval_beam_size=3)
    vq = make("ResidualVQ", words)
    x = torch.randn(SHAPE, requires_grad=True)
    for _ in range(3):
        quantized, indices, losses = vq(x)
    assert quantized.shape == SHAPE
    assert indices.shape == (1, 96, 8)
    assert losses.shape == (8,)
    assert vq.eval().vq.beam_size == 3


def test_averages_may_be_updated_later() -> None:
    first, second = (make("VectorQuantize", sizes()) for _ in range(2))
    x, mask = torch.randn(SHAPE), torch.rand(1, 96) < 0.5
    quantized, indices, _ = first(x, mask=mask)
    again, same, _ = second(x, mask=mask, ema_update=False)
    assert torch.allclose(quantized, again)
    assert torch.equal(indices, same)
    assert not torch.allclose(first._codebook.embed_avg, second._codebook.embed_avg)
    second.update_ema_indices(x, same, mask=mask)
    assert torch.allclose(first._codebook.embed_avg, second._codebook.embed_avg)
    assert torch.allclose(first._codebook.cluster_size, second._codebook.cluster_size)
    assert torch.allclose(first.codebook, second.codebook)


@pytest.mark.parametrize("shape", [(1, 64, 4), (1, 8, 8, 4), (2, 9, 4)])
def test_indices_may_be_left_out(shape: tuple[int, ...]) -> None:
    assert make("FSQ", {"levels": LEVELS, "return_indices": False})(torch.randn(shape))[1] is None


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("mask", [[False, False], [True, False], [True, True]])
def test_masked_entropies(fraction: float, mask: list[bool]) -> None:
    vq = make("LFQ", {"codebook_size": 64, "dim": 6, "frac_per_sample_entropy": fraction})
    (quantized, indices, _), entropies = vq(
        torch.randn(2, 6, 8, 8), mask=torch.tensor(mask), return_loss_breakdown=True
    )
    assert torch.equal(quantized, vq.indices_to_codes(indices))
    assert all(term.isfinite() for term in entropies)


@pytest.mark.parametrize("mask", [None, torch.tensor([True, False])])
def test_a_part_of_the_latents_has_the_entropy_of_all(mask: torch.Tensor | None) -> None:
    words = {"codebook_size": 64, "dim": 6}
    whole, part = make("LFQ", words), make("LFQ", {**words, "frac_per_sample_entropy": 0.1})
    x = torch.randn(2, 6, 16, 16)
    how = {"inv_temperature": 1.0, "mask": mask, "return_loss_breakdown": True}
    expected = whole(x, **how)[1].per_sample_entropy
    drawn = torch.stack([part(x, **how)[1].per_sample_entropy for _ in range(20)])
    assert abs(drawn.mean() - expected) < 4 * drawn.std() / math.sqrt(20)


def test_random_projections_give_indices() -> None:
    words = {"dim": DIM, "num_codebooks": 4, "codebook_dim": 8, "codebook_size": SIZE}
    indices = make("RandomProjectionQuantizer", words)(torch.randn(SHAPE))
    assert indices.shape == (1, 96, 4)


def test_one_number_of_levels_needs_a_dimension() -> None:
    with pytest.raises(RuntimeError, match="codebook_dim"):
        make("LatentQuantize", {"levels": 5, "dim": 16})


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("channel_last", [False, True])
def test_the_commitment_is_that_of_valid_latents_among_the_codes(
    heads: int, separate: bool, cosine: bool, channel_last: bool
) -> None:
    words = {"dim": 6, "codebook_dim": 3, "codebook_size": 8, "heads": heads, "separate_codebook_per_head": separate}
    vq = make(
        "VectorQuantize", {**words, "use_cosine_sim": cosine, "channel_last": channel_last, "commitment_weight": 0.7}
    )
    x, mask = 3 * torch.randn(2, 4, 6), torch.tensor([[True, True, True, False], [True, True, False, False]])
    _, indices, loss, breakdown = vq(
        x if channel_last else x.transpose(1, 2), mask=mask, freeze_codebook=True, return_loss_breakdown=True
    )
    latents = vq.project_in(x[mask]).reshape(5, heads, 3)
    latents = torch.nn.functional.normalize(latents, dim=-1) if cosine else latents
    codebooks = vq.codebook.reshape(-1, 8, 3)
    chosen = indices[mask].reshape(5, heads)
    codes = torch.stack([codebooks[head % len(codebooks)][chosen[:, head]] for head in range(heads)], dim=1)
    distances = torch.stack([torch.cdist(latents[:, h], codebooks[h % len(codebooks)]) for h in range(heads)], dim=1)
    assert torch.equal(chosen, distances.argmin(dim=2))
    assert torch.allclose(breakdown.commitment, (latents - codes).square().mean())
    assert torch.allclose(loss, 0.7 * breakdown.commitment)


@pytest.mark.parametrize("codebook_dim", [None, 4])
def test_the_round_trip_of_images_is_exact_and_the_peers_too_without_a_projection(codebook_dim: int | None) -> None:
    x = torch.randn(IMAGE)
    ours = NSVQ(DIM, SIZE, codebook_dim=codebook_dim, channel_first=True).eval()
    quantized, indices, _ = ours(x)
    assert torch.equal(ours.indices_to_codes(indices), quantized)
    peer = VectorQuantize(DIM, SIZE, codebook_dim=codebook_dim, accept_image_fmap=True).eval()
    quantized, indices, _ = peer(x)
    if codebook_dim is None:
        assert torch.equal(peer.get_output_from_indices(indices), quantized)
    else:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            peer.get_output_from_indices(indices)
