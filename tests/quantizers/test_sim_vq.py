import numpy as np
import pytest
import torch

from driftvq import BridgeVQ, Quantizer, SimVQ, TransVQPaper, TransVQPublished


def test_codebook_is_the_frozen_one_times_a_matrix() -> None:
    torch.manual_seed(0)
    vq = SimVQ(dim=6, codebook_size=32)
    expected = vq.book.base.numpy() @ vq.book.transform.weight.detach().numpy().T
    np.testing.assert_allclose(vq.codebook.detach(), expected, atol=1e-6)
    assert [name for name, _ in vq.named_parameters()] == ["book.transform.weight"]


def test_one_step_moves_codes_that_were_not_selected() -> None:
    torch.manual_seed(0)
    vq = SimVQ(dim=6, codebook_size=32)
    before, base = vq.codebook.detach().clone(), vq.book.base.clone()
    optimizer = torch.optim.SGD(vq.parameters(), lr=1.0)
    vq(torch.randn(1, 6)).loss.backward()
    optimizer.step()
    assert ((vq.codebook - before).abs().sum(dim=1) > 0).all()
    assert torch.equal(vq.book.base, base)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_evaluation_sees_every_step_of_an_optimizer(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    vq = SimVQ(dim=6, codebook_size=32)
    optimizer = torch.optim.Adam(vq.parameters(), lr=0.1, **options)
    for _ in range(3):
        before = vq.eval().codebook.clone()
        vq.train()(torch.randn(8, 6)).loss.backward()
        optimizer.step()
        after = vq.eval().codebook
        assert not torch.equal(after, before)
        assert torch.equal(after, vq.train().codebook)


def test_gradient_of_the_matrix_matches_the_chain_rule() -> None:
    torch.manual_seed(0)
    vq = SimVQ(dim=4, codebook_size=8).double()
    z = torch.randn(30, 4, dtype=torch.float64)
    _, indices, loss = vq(z)
    loss.backward()
    base = vq.book.base.numpy()[indices]
    weight = vq.book.transform.weight.detach().numpy()
    error = base @ weight.T - z.numpy()
    np.testing.assert_allclose(vq.book.transform.weight.grad, 2 * error.T @ base / error.size)


def test_what_is_asked_in_between_is_of_the_present_codes() -> None:
    """A fused optimizer leaves no trace in a tensor's version, and who evaluates in between may set the mode alone."""
    vq = SimVQ(4, 16)
    optimizer = torch.optim.Adam(vq.parameters(), lr=0.05, fused=True)
    for _ in range(3):
        vq(torch.randn(32, 4)).loss.backward()
        optimizer.step()
        vq.book.training = False
        assert torch.equal(vq.codebook, vq.book.transformed())
        vq.book.training = True


@pytest.mark.parametrize("quantizer", [SimVQ, TransVQPaper, TransVQPublished, BridgeVQ])
def test_evaluation_sees_what_is_written_behind_the_version(quantizer: type[Quantizer]) -> None:
    """As a scope that lends a model the average of its weights does."""
    vq = quantizer(4, 16).eval()
    before = vq.codebook.clone()
    for parameter in vq.book.transform.parameters():
        parameter.data.add_(torch.randn_like(parameter))
    after = vq(torch.randn(9, 4))
    assert not torch.allclose(vq.codebook, before)
    assert torch.equal(after.quantized, vq.book.transformed()[after.indices])


def test_codes_computed_in_inference_mode_may_be_used_outside() -> None:
    vq = SimVQ(4, 8).eval()
    with torch.inference_mode():
        vq(torch.randn(3, 4))
    torch.nn.Linear(4, 4)(vq.codebook).sum().backward()
