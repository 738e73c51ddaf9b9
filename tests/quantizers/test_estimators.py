import pytest
import torch

from driftvq import NSVQ, VQ, Gumbel, Modified, Sampled, TransVQ, make_quantizer
from driftvq.quantizers.estimators import ESTIMATORS, make_estimator


def quantizer(estimator: object) -> VQ:
    torch.manual_seed(0)
    vq = VQ(dim=3, codebook_size=8, estimator=estimator).double()
    torch.nn.init.normal_(vq.book.codes)
    return vq


@pytest.mark.parametrize(("divisor", "d"), [("latents", 20), ("elements", 60), (7.0, 7)])
def test_modified_hands_winning_codes_two_over_d_of_the_gradient(divisor: object, d: float) -> None:
    vq = quantizer(Modified(divisor=divisor))
    z, gradient = torch.randn(2, 20, 3, dtype=torch.float64).requires_grad_().unbind()
    z.retain_grad()
    padded = torch.cat([z, torch.ones(5, 3)])
    quantized, indices, _ = vq(padded, torch.arange(25) < 20)
    quantized, indices = quantized[:20], indices[:20]
    (quantized * gradient.detach()).sum().backward()
    expected = torch.zeros(8, 3, dtype=torch.float64).index_add_(0, indices, gradient.detach()) * 2 / d
    assert torch.allclose(z.grad, gradient.detach())
    assert torch.allclose(vq.book.codes.grad, expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_output_is_a_code_exactly_in_evaluation_and_but_for_diveq_in_training(estimator: str) -> None:
    vq = quantizer(estimator)
    for training in (True, False):
        quantized, indices, _ = vq.train(training)(torch.randn(50, 3, dtype=torch.float64))
        exact = torch.equal(quantized, vq.book.codes[indices])
        assert exact == (not training or estimator not in ("directional", "space_filling"))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_masked_latents_which_are_0_matter_as_little_where_0_is_far_from_the_others(estimator: str) -> None:
    x, mask = torch.randn(60, 3, dtype=torch.float64), torch.arange(60) < 50
    found = []
    for offset in (0, 100):
        vq = quantizer(estimator)
        vq.set_codebook_(vq.codebook + offset)
        quantized, indices, _ = vq(x + offset, mask)
        found.append((quantized[mask] - offset, indices))
    assert torch.allclose(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_gumbel_samples_by_distance_and_not_by_scale() -> None:
    counts = []
    for scale in (1.0, 1e3):
        vq = quantizer(Gumbel(temperature=0.5))
        with torch.no_grad():
            vq.book.codes.mul_(scale)
        torch.manual_seed(4)
        z = torch.randn(4000, 3, dtype=torch.float64) * scale
        indices = vq(z).indices
        vq.eval()
        counts.append((indices == vq(z).indices).double().mean())
    assert 0.2 < counts[0] < 0.95
    assert counts[0] == counts[1]


@pytest.mark.parametrize("cls", [NSVQ, TransVQ])
@pytest.mark.parametrize("estimator", ["rotation", "gumbel", "modified"])
def test_both_cures_work_with_every_estimator(cls: type, estimator: str) -> None:
    torch.manual_seed(0)
    vq = cls(dim=3, codebook_size=16, estimator=estimator)
    trained = [parameter for parameter in vq.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-3) if trained else None
    for step in range(40):
        z = torch.randn(64, 3, generator=torch.Generator().manual_seed(step)) + 0.05 * step
        quantized, _, loss = vq(z.requires_grad_())
        ((quantized - z.detach()).square().mean() + loss).backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    cloud = torch.randn(4000, 3) + 2
    quantized, indices, _ = vq.eval()(cloud)
    assert indices.unique().numel() == 16
    assert (quantized - cloud).square().mean() < 0.6 * cloud.var()


def test_unknown_estimator_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown estimator 'rotate'; known, nearest first: rotation, "):
        make_estimator("rotate")
    assert make_quantizer("vq", dim=3, codebook_size=8, estimator=Gumbel(0.1)).estimator == Gumbel(0.1)


def test_codes_are_drawn_by_their_distance_and_the_temperature() -> None:
    torch.manual_seed(0)
    codes, x = torch.randn(5, 3), torch.randn(1, 3).expand(20_000, 3)
    vq = VQ(3, 5, estimator=Sampled(0.5))
    vq.set_codebook_(codes)
    distances = (x[0] - codes).square().sum(dim=1)
    expected = torch.softmax(-distances / (0.5 * distances.min()), dim=0)
    shares = torch.bincount(vq(x).indices, minlength=5) / 20_000
    assert torch.allclose(shares, expected, atol=0.015)
    vq.estimator = Sampled(1e-6)
    assert (vq(x).indices == distances.argmin()).all()


def test_a_temperature_is_positive() -> None:
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        Sampled(0)


@pytest.mark.parametrize("seed", range(6))
def test_gumbel_has_something_to_choose_by_where_latents_are_codes_far_from_the_origin(seed: int) -> None:
    """Their distances are nothing but rounding, and logits in units of it would be as well."""
    torch.manual_seed(seed)
    vq = VQ(dim=4, codebook_size=16, estimator="gumbel")
    vq.set_codebook_(torch.randn(16, 4) + 1000)
    z = vq.codebook.detach().repeat(50, 1).requires_grad_()
    quantized, indices, loss = vq(z)
    (quantized.sum() + loss).backward()
    assert torch.equal(indices, torch.arange(16).repeat(50))
    assert z.grad.abs().max() < 1
    assert vq.book.codes.grad.abs().max() <= 51
