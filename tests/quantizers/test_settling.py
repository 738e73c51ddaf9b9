"""A settled codebook is k-means of the latents, for every quantizer that has one."""

import copy
from typing import Any

import pytest
import torch
from sklearn.cluster import KMeans

from driftvq import FSQ, IBQ, ResidualVQ, make_quantizer
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.settling import settle_
from tests.quantizers.cases import DEFAULTS, Case, train

WITH_CODEBOOKS = [case for case in DEFAULTS if isinstance(case.make(), CodebookQuantizer)]


def clusters(batches: int = 4, rows: int = 256, dim: int = 4, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(16, dim, generator=generator)
    chosen = torch.randint(16, (batches, rows), generator=generator)
    return list(centres[chosen] + 0.3 * torch.randn(batches, rows, dim, generator=generator))


@pytest.mark.parametrize("case", WITH_CODEBOOKS, ids=str)
def test_codes_are_the_means_of_their_cells_and_stay_so(case: Case) -> None:
    vq = case.make(dim=4, codebook_size=16)
    assert isinstance(vq, CodebookQuantizer)
    batches = clusters()
    vq(batches[0])
    step, training = int(vq.step), vq.training
    errors = settle_(vq, batches, passes=30)
    assert errors[-1] <= errors[0]
    assert (int(vq.step), vq.training) == (step, training)
    vq.eval()
    z = vq.to_code_space(vq.project_in(torch.cat(batches)))
    quantized, indices, _ = vq(torch.cat(batches))
    means = torch.stack([z[indices == k].mean(dim=0) for k in indices.unique()])
    if vq.metric == "cosine":
        means = torch.nn.functional.normalize(means, dim=1)
    torch.testing.assert_close(vq.codebook[indices.unique()], means, atol=1e-3, rtol=1e-3)
    assert torch.equal(vq.indices_to_codes(indices), quantized)

    codes = vq.codebook.clone()
    train(vq, Case(case.name, {"dim": 4}))
    assert torch.equal(vq.eval().codebook, codes)
    twin = case.make(dim=4, codebook_size=16)
    twin.load_state_dict(vq.state_dict())
    assert torch.equal(twin.eval().codebook, codes)


def test_reaches_what_scikit_learn_finds_from_the_same_start() -> None:
    batches = clusters()
    vq = make_quantizer("vq", dim=4, codebook_size=8)
    start = torch.cat(batches)[:8].clone()
    vq.set_codebook_(start)
    errors = settle_(vq, batches, passes=50)
    assert errors[0] == pytest.approx(torch.cdist(torch.cat(batches), start).min(dim=1).values.square().mean().item())
    expected = KMeans(8, init=start.numpy(), n_init=1, max_iter=50, tol=0).fit(torch.cat(batches).numpy())
    torch.testing.assert_close(vq.codebook.detach(), torch.tensor(expected.cluster_centers_), atol=1e-4, rtol=1e-4)


def test_lost_codes_find_latents_again() -> None:
    vq = make_quantizer("vq", dim=4, codebook_size=64)
    vq.set_codebook_(torch.cat([clusters()[0][:2], torch.full((62, 4), 1e3)]))
    before, after = settle_(copy.deepcopy(vq), clusters(), passes=1), settle_(vq, clusters(), passes=20)
    assert len(vq.eval()(torch.cat(clusters())).indices.unique()) > 58
    assert after[-1] < before[0] / 10


def test_levels_of_a_residual_quantizer_settle_together() -> None:
    vq = ResidualVQ(dim=4, codebook_size=16, num_quantizers=2, quantizer="ema_vq", kmeans_init=True)
    batches = clusters()
    for latents in batches:
        vq(latents)
    errors = settle_(vq, batches, passes=20)
    assert errors[-1] < errors[0]
    first, second = (part.codebook.clone() for part in vq.quantizers)
    vq.train()(batches[0])
    assert torch.equal(vq.part(0).codebook, first)
    assert torch.equal(vq.part(1).codebook, second)


def test_a_projection_in_front_is_frozen_and_the_one_behind_is_not() -> None:
    vq = make_quantizer("ns_vq", dim=4, codebook_size=16, codebook_dim=2)
    settle_(vq, clusters(), passes=2)
    trained = [name for name, parameter in vq.named_parameters() if parameter.requires_grad]
    assert trained == ["project_out.weight", "project_out.bias"]


@pytest.mark.parametrize("cls", [FSQ, IBQ])
def test_a_codebook_without_nearest_codes_stays(cls: type) -> None:
    vq = cls(dim=4, codebook_size=64)
    codes = vq.codebook.clone()
    assert settle_(vq, clusters()) == []
    assert torch.equal(vq.codebook, codes)
    assert all(not p.requires_grad for name, p in vq.named_parameters() if not name.startswith("project_out"))


def test_refuses_batches_that_can_be_seen_once() -> None:
    with pytest.raises(ValueError, match="several times, got generator"):
        settle_(FSQ(dim=4, codebook_size=64), (latents for latents in clusters()))


def test_a_settled_codebook_can_be_let_free_again() -> None:
    vq = make_quantizer("vq", dim=4, codebook_size=16)
    settle_(vq, clusters(), passes=2)
    vq.freeze_codebook = False
    assert all(parameter.requires_grad for parameter in vq.book.parameters())


@pytest.mark.parametrize("options", [{"quantizer_dropout": 0.9}, {"estimator": "gumbel"}], ids=str)
def test_levels_settle_on_what_evaluation_leaves_for_them(options: dict[str, Any]) -> None:
    """Not on what a training that drops levels or draws codes would."""
    plain = ResidualVQ(dim=4, codebook_size=16, num_quantizers=3, quantizer="vq")
    other = ResidualVQ(dim=4, codebook_size=16, num_quantizers=3, quantizer="vq", **options)
    other.load_state_dict(plain.state_dict())
    kept = other.quantizer_dropout, [part.estimator for part in other.quantizers]
    assert settle_(other, clusters(), passes=3) == settle_(plain, clusters(), passes=3)
    assert torch.equal(other.part(2).codebook, plain.part(2).codebook)
    assert (other.quantizer_dropout, [part.estimator for part in other.quantizers]) == kept
