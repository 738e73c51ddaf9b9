import pytest
import torch

from driftvq import IBQ
from tests.functional.test_soft import index_softmax_by_autograd
from tests.memory import largest_allocation


def test_every_code_gets_a_gradient_from_the_decoder() -> None:
    torch.manual_seed(0)
    vq = IBQ(dim=4, codebook_size=32, entropy_weight=0.0, commitment_weight=0.0)
    vq.codes.data.normal_()
    output, indices, _ = vq(torch.randn(3, 4))
    output.square().sum().backward()
    assert len(indices.unique()) < 32
    assert (vq.codes.grad.abs().sum(dim=1) > 0).all()


def test_loss_is_the_sum_of_its_terms() -> None:
    torch.manual_seed(0)
    vq = IBQ(dim=4, codebook_size=16, commitment_weight=0.5, entropy_weight=0.3).double()
    vq.codes.data.normal_()
    z = torch.randn(60, 4, dtype=torch.float64)
    _, p = index_softmax_by_autograd(z, vq.codes.detach())
    error = (z - vq.codes[p.argmax(dim=1)]).square().mean()
    entropies = torch.special.entr(p).sum(dim=1).mean() - torch.special.entr(p.mean(dim=0)).sum()
    assert vq(z).loss.item() == pytest.approx((2.5 * error + 0.3 * entropies).item())
    assert vq.eval()(z).loss.item() == pytest.approx(2.5 * error.item())


def test_training_stores_nothing_of_size_latents_by_codes() -> None:
    latents, codes = 8192, 4096
    vq = IBQ(dim=4, codebook_size=codes)
    z = torch.randn(latents, 4, requires_grad=True)

    def step() -> None:
        output, _, loss = vq(z)
        (output.sum() + loss).backward()

    assert largest_allocation(step) < latents * codes * 4 / 2
