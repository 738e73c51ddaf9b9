"""Latents of any scale from 1e-18 to 1e18, in single precision: the same relative error, or one clear error."""

from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import nn

from driftvq import QUANTIZERS, Quantizer, make_quantizer
from driftvq.quantizers.codebook import CodebookQuantizer

DIM, SIZE = 4, 16
OWN_SCALE = {
    *("bridge_vq", "cosine_ema_vq", "factorized_vq", "trans_vq_paper", "trans_vq_published"),
    *("fsq", "lfq", "bsq", "gumbel_vq", "ibq"),
}
"""Methods whose codes lie on a grid, have unit length, leave a network behind a norm, or are chosen by a softmax."""
REFUSED = {**dict.fromkeys(sorted(OWN_SCALE), (1e-18, 1e-09, 1000000000.0, 1e18)), "ns_vq_paper": (1e-18, 1e-9)}
REFUSED["ns_vq_sequel"] = REFUSED["ns_vq_paper"]  # the kernel's width is one in units of the latents
SCALES = (1e-18, 1e-9, 1e9, 1e18)


def make(name: str) -> Quantizer:
    torch.manual_seed(0)
    plain = make_quantizer(name, dim=DIM, codebook_size=SIZE)
    if not isinstance(plain, CodebookQuantizer):
        return plain
    return make_quantizer(name, dim=DIM, codebook_size=SIZE, kmeans_init=True)


@cache
def relative_error(name: str, scale: float) -> float:
    """Of latents of this scale: in a k-means start, in steps in which an optimizer trains the codes, and after."""
    vq = make(name)
    stored = [vq.book.stored] if isinstance(vq, CodebookQuantizer) and vq.book.stored.requires_grad else []
    optimizer = torch.optim.SGD(stored or [nn.Parameter(torch.ones(1))], 0.5)
    generator = torch.Generator().manual_seed(1)
    errors = []
    for _ in range(12):
        x = torch.randn(48, DIM, generator=generator) * scale
        quantized, _, loss = vq(x.requires_grad_())
        loss.backward()
        errors.append(((quantized - x).detach() / scale).square().mean())
        assert quantized.isfinite().all()
        assert loss.isfinite()
        optimizer.step()
        optimizer.zero_grad()
    assert all(value.isfinite().all() for value in vq.state_dict().values() if value.is_floating_point())
    for _ in range(6):
        x = torch.randn(48, DIM, generator=generator) * scale
        errors.append(((vq.eval()(x).quantized - x) / scale).square().mean())
    return torch.stack(errors).mean().item()


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for name in QUANTIZERS for scale in SCALES if scale not in REFUSED.get(name, ())]
)
def test_the_relative_error_does_not_depend_on_the_scale(name: str, scale: float) -> None:
    # A second level gathers what the first leaves of latents before it has codes of their scale: another sample.
    tolerance = 0.15 if name == "residual_vq" else 0.03
    assert relative_error(name, scale) == pytest.approx(relative_error(name, 1.0), rel=tolerance)


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name, scales in REFUSED.items() for scale in scales])
def test_a_scale_that_is_none_for_a_method_is_refused_before_anything_changes(name: str, scale: float) -> None:
    vq, x = make(name), torch.randn(48, DIM)
    for quantizer in (vq, make_quantizer("residual_vq", dim=DIM, codebook_size=SIZE, quantizer=name)):
        before = deepcopy(quantizer.state_dict())
        with pytest.raises(ValueError, match=r"have magnitudes between .* of their own, got .*: scale the latents"):
            quantizer(x * scale)
        assert all(torch.equal(value, before[key]) for key, value in quantizer.state_dict().items())
    vq(torch.cat([x, x[:1] * 1e11]))  # one wild latent is no reason, nor are zeros
    vq(torch.zeros(9, DIM))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["vq", "ema_vq", "sim_vq", "opt_vq", "wasserstein_vq", "ns_vq_published", "cvq"])
def test_codes_that_nothing_brought_to_the_latents_refuse_another_scale(name: str, scale: float) -> None:
    vq, x = make_quantizer(name, dim=DIM, codebook_size=SIZE, kmeans_init=False), torch.randn(48, DIM)
    before = deepcopy(vq.state_dict())
    with pytest.raises(ValueError, match=r"have magnitudes between .* of their own, got .*: scale the latents"):
        vq(x * scale)
    assert all(torch.equal(value, before[key]) for key, value in vq.state_dict().items())
    vq.set_codebook_(torch.randn(SIZE, DIM) * scale)
    vq(x * scale)


@pytest.mark.parametrize("scale", SCALES)
def test_codes_that_go_where_the_latents_are_need_no_start(scale: float) -> None:
    torch.manual_seed(0)
    vq = make_quantizer("ns_vq", dim=DIM, codebook_size=SIZE, kmeans_init=False)
    for _ in range(100):
        x = torch.randn(48, DIM) * scale
        quantized = vq(x).quantized
    assert ((quantized - x) / scale).square().mean() < 0.6


@pytest.mark.parametrize("name", QUANTIZERS)
def test_squares_without_a_finite_sum_are_refused_before_anything_changes(name: str) -> None:
    vq, x = make(name), torch.randn(4096, DIM) * 1e18
    before = deepcopy(vq.state_dict())
    with pytest.raises(ValueError, match=r"squares is finite, in torch.float32 up to some 1e\+17 for 16384"):
        vq(x)
    assert all(torch.equal(value, before[key]) for key, value in vq.state_dict().items())


def test_half_precision_is_not_refused_for_what_it_cannot_sum() -> None:
    vq = make_quantizer("ns_vq", dim=DIM, codebook_size=SIZE)
    assert vq(torch.full((4096, DIM), 6e4).half()).loss.isfinite()
    with pytest.raises(ValueError, match="sum of their squares"):
        vq(torch.full((4096, DIM), 1e18).bfloat16())
