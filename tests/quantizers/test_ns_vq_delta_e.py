import torch

from driftvq import NSVQDeltaE


def make() -> NSVQDeltaE:
    torch.manual_seed(0)
    vq = NSVQDeltaE(dim=3, codebook_size=10, kmeans_init=False).double()
    torch.nn.init.normal_(vq.book.codes)
    return vq


def test_spreads_the_decoders_gradient() -> None:
    vq = make()
    z, gradient = torch.randn(2, 20, 3, dtype=torch.float64)
    mask = torch.arange(20) < 15
    (vq(z, mask).quantized * gradient).sum().backward()
    distance = torch.cdist(z, vq.book.codes.detach()).square()
    w = torch.exp(-distance).scatter_(1, distance.argmin(dim=1, keepdim=True), 0)
    assert torch.allclose(vq.book.codes.grad, (w * mask[:, None]).T @ gradient)


def test_the_output_is_the_code_and_the_encoder_gets_the_gradient_unchanged() -> None:
    vq = make()
    z, gradient = torch.randn(2, 20, 3, dtype=torch.float64)
    z.requires_grad_()
    quantized, indices, _ = vq(z)
    assert torch.equal(quantized, vq.codebook[indices])
    (quantized * gradient).sum().backward()
    assert torch.equal(z.grad, gradient)


def test_loss_is_that_of_vq() -> None:
    vq = make()
    z = torch.randn(20, 3, dtype=torch.float64)
    _, indices, loss = vq(z)
    loss.backward()
    error = vq.codebook.detach()[indices] - z
    assert torch.allclose(loss, 1.25 * error.square().mean())
    expected = torch.zeros(10, 3, dtype=torch.float64).index_add_(0, indices, 2 * error / 60)
    assert torch.allclose(vq.book.codes.grad, expected)


def test_nothing_is_spread_in_evaluation_or_when_frozen() -> None:
    vq = make()
    z = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    vq.eval()(z).quantized.sum().backward()
    assert vq.book.codes.grad is None
    vq.train().freeze_codebook = True
    vq(z).quantized.sum().backward()
    assert vq.book.codes.grad is None
