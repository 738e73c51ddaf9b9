"""Latents of any scale from 1e-18 to 1e18, in single precision."""

from functools import cache

import pytest
import torch
from torch import nn

from driftvq import QUANTIZERS, make_quantizer
from driftvq.quantizers.codebook import CodebookQuantizer

DIM, SIZE = 4, 16
OWN_SCALE = {"bridge_vq", "cosine_ema_vq", "factorized_vq", "trans_vq_paper", "trans_vq_published"}
"""Methods whose codes are normed, or leave a network behind a norm: their scale is not that of the latents."""
WIDTH_OF_ITS_OWN = {"ns_vq_paper", "ns_vq_sequel"}
"""Methods whose kernel has a width in units of the latents: it reaches all codes when these are close together."""
NAMES = [
    name for name in QUANTIZERS if isinstance(make_quantizer(name, dim=DIM, codebook_size=SIZE), CodebookQuantizer)
]


@cache
def relative_error(name: str, scale: float) -> float:
    """Of latents of this scale, after a k-means start and a few steps in which an optimizer trains the codes."""
    torch.manual_seed(0)
    vq = make_quantizer(name, dim=DIM, codebook_size=SIZE, kmeans_init=True)
    assert isinstance(vq, CodebookQuantizer)
    optimizer = torch.optim.SGD([vq.book.stored if vq.book.stored.requires_grad else nn.Parameter(torch.ones(1))], 0.5)
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        quantized, _, loss = vq((torch.randn(64, DIM, generator=generator) * scale).requires_grad_())
        loss.backward()
        assert quantized.isfinite().all()
        optimizer.step()
        optimizer.zero_grad()
    assert all(value.isfinite().all() for value in vq.state_dict().values() if value.is_floating_point())
    x = torch.randn(256, DIM, generator=generator) * scale
    return ((vq.eval()(x).quantized - x) / scale).square().mean().item()


@pytest.mark.parametrize("scale", [1e-18, 1e-9, 1e9, 1e18])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OWN_SCALE])
def test_the_relative_error_does_not_depend_on_the_scale(name: str, scale: float) -> None:
    if scale < 1 and name in WIDTH_OF_ITS_OWN:
        assert relative_error(name, scale) < 1.1  # no worse than a single code
        return
    assert relative_error(name, scale) == pytest.approx(relative_error(name, 1.0), rel=0.03)


@pytest.mark.parametrize("scale", [1e-18, 1e18])
@pytest.mark.parametrize("name", sorted(OWN_SCALE))
def test_a_method_with_a_scale_of_its_own_stays_finite(name: str, scale: float) -> None:
    """At 1e18 the codes are nothing beside the latents, at 1e-18 the latents beside them."""
    if scale > 1:
        assert relative_error(name, scale) == pytest.approx(1, rel=0.2)
    else:
        assert relative_error(name, scale) > 1e6
