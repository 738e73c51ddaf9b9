"""Agreement with vector-quantize-pytorch from the same state, over several training steps.

Deliberate differences, which the tests below pin down or step around:

- ResidualVQ hands the encoder the decoder's gradient once; there it arrives once per level.
- ``indices_to_codes`` is what ``forward`` gave, projection and layout included; there that depends on the class.
- VectorQuantize's and LFQ's losses are zero in evaluation; here they are those of training.
- VectorQuantize with a learnable codebook has the single term ``w · mse(z, c)``, which moves encoder and codes alike:
  at w = 1 its gradients are those of VQ with β = 1, its value is half of VQ's.
- LFQ there clamps probabilities at 1e-5 inside the logarithm of its entropies, which biases them and their gradients.
- The rotation trick there returns the rotated latent, equal to the code up to rounding; here it is the code.
"""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import vector_quantize_pytorch as vqp
from torch.testing import assert_close
from vector_quantize_pytorch.vector_quantize_pytorch import orthogonal_loss_fn, rotate_to

from driftvq import EMAVQ, FSQ, LFQ, VQ, FactorizedVQ, ResidualVQ, SimVQ
from driftvq.functional import orthogonal_loss, rotate
from driftvq.quantizers.adapters import from_vector_quantize_pytorch

STEPS = 5
close = partial(assert_close, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def latents(step, dim=4):
    """A drifting cloud, so that latents change codes from step to step."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(3, 20, dim, generator=generator) + 0.2 * step


def train(ours, theirs, dim=4, state=tuple, our_loss=None, copies=1, decoder=True):
    """Train both on the same latents and decoder gradients; compare outputs, loss, gradients and state at every step.

    Args:
        state: gives pairs of tensors, ours and theirs, that must agree after every step.
        our_loss: what our loss should be, given theirs, the latents and the output.
        copies: how often theirs hands the decoder's gradient to the encoder.
        decoder: whether there is a decoder's gradient at all.
    """
    parameters = [p for module in (ours, theirs) for p in module.parameters()]
    optimizer = torch.optim.SGD([*parameters, torch.zeros(1, requires_grad=True)], lr=0.5)
    seen = set()
    for step in range(STEPS):
        z, z_theirs = latents(step, dim).requires_grad_(), latents(step, dim).requires_grad_()
        g = decoder * torch.randn(z.shape, generator=torch.Generator().manual_seed(step)) / z.numel()
        quantized, indices, loss = ours(z)
        quantized_theirs, indices_theirs, *losses = theirs(z_theirs)
        loss_theirs = losses[0].sum() if losses else torch.zeros(())
        optimizer.zero_grad()
        ((quantized * g).sum() + loss).backward()
        ((quantized_theirs * g).sum() + loss_theirs).backward()
        optimizer.step()
        assert torch.equal(indices, indices_theirs.long())
        close(quantized, quantized_theirs)
        close(loss, our_loss(loss_theirs, z, quantized) if our_loss else loss_theirs)
        assert z.grad.abs().max() * z.numel() > 0.01
        close(z.grad * z.numel(), (z_theirs.grad - (copies - 1) * g) * z.numel())
        for mine, their in state():
            close(mine, their)
        seen |= set(indices.flatten().tolist())
    assert len(seen) > 3


class With(torch.nn.Module):
    """A module called with further arguments."""

    def __init__(self, module, **arguments):
        super().__init__()
        self.module, self.arguments = module, arguments

    def forward(self, x):
        return self.module(x, **self.arguments)


def parameter_pairs(ours, theirs):
    theirs = dict(theirs.named_parameters())
    return [(value, theirs[name]) for name, value in ours.named_parameters()]


def projection_pairs(ours, theirs):
    return [
        pair
        for layer in ("project_in", "project_out")
        for pair in parameter_pairs(getattr(ours, layer), getattr(theirs, layer))
    ]


def ema_state(ours, theirs):
    codebook = theirs._codebook
    return [
        (ours.book.codes, codebook.embed[0]),
        (ours.book.cluster_size, codebook.cluster_size[0]),
        (ours.book.cluster_sum, codebook.embed_avg[0]),
        *parameter_pairs(ours, theirs),
    ]


@pytest.mark.parametrize("codebook_dim", [4, 3])
@pytest.mark.parametrize("rotation", [False, True])
def test_ema_vq(codebook_dim, rotation):
    theirs = vqp.VectorQuantize(
        4, 16, codebook_dim=codebook_dim, decay=0.8, eps=1e-3, commitment_weight=0.5, rotation_trick=rotation
    )
    ours = from_vector_quantize_pytorch(
        theirs.state_dict(),
        decay=0.8,
        eps=1e-3,
        commitment_weight=0.5,
        estimator="rotation" if rotation else "straight_through",
    )
    assert isinstance(ours, EMAVQ)
    before = ours.book.codes.clone()
    train(ours, theirs, state=lambda: ema_state(ours, theirs))
    assert (ours.book.codes - before).abs().max() > 0.1


def test_ema_vq_masked():
    theirs = vqp.VectorQuantize(4, 16, decay=0.8, rotation_trick=False)
    ours = from_vector_quantize_pytorch(theirs.state_dict(), decay=0.8, commitment_weight=1.0)
    mask = torch.rand(3, 20) < 0.6
    train(With(ours, mask=mask), With(theirs, mask=mask), state=lambda: ema_state(ours, theirs))


def test_ema_vq_dead_codes_move_to_latents():
    theirs = vqp.VectorQuantize(4, 16, decay=0.8, threshold_ema_dead_code=1, rotation_trick=False)
    ours = from_vector_quantize_pytorch(theirs.state_dict(), decay=0.8, threshold_ema_dead_code=1)
    for step in range(STEPS):
        z = latents(step)[:1, :1].expand(1, 20, 4)
        ours(z), theirs(z)
        for mine, their in ema_state(ours, theirs):
            close(mine, their)
    assert (ours.book.codes == z[0, 0]).all(dim=1).sum() > 10


@pytest.mark.parametrize("codebook_dim", [4, 3])
@pytest.mark.parametrize("rotation", [False, True])
def test_vq(codebook_dim, rotation):
    theirs = vqp.VectorQuantize(
        4, 16, codebook_dim=codebook_dim, learnable_codebook=True, ema_update=False, rotation_trick=rotation
    )
    ours = from_vector_quantize_pytorch(
        theirs.state_dict(),
        learnable_codebook=True,
        commitment_weight=1.0,
        estimator="rotation" if rotation else "straight_through",
    )
    assert isinstance(ours, VQ)
    before = ours.book.codes.detach().clone()
    train(
        ours,
        theirs,
        state=lambda: [(ours.book.codes, theirs.codebook), *projection_pairs(ours, theirs)],
        our_loss=lambda loss, *_: 2 * loss,
    )
    assert (ours.book.codes - before).abs().max() > 0.1


def test_vq_orthogonal():
    theirs = vqp.VectorQuantize(
        4, 16, learnable_codebook=True, ema_update=False, rotation_trick=False, orthogonal_reg_weight=8.0
    )
    ours = from_vector_quantize_pytorch(
        theirs.state_dict(), learnable_codebook=True, commitment_weight=1.0, orthogonal_weight=8.0
    )
    train(
        ours,
        theirs,
        state=lambda: [(ours.book.codes, theirs.codebook)],
        our_loss=lambda loss, z, quantized: loss + F.mse_loss(quantized, z),
    )


def test_orthogonal_loss():
    codebook = torch.randn(32, 6)
    close(orthogonal_loss(codebook), orthogonal_loss_fn(codebook[None]))


def test_rotation_trick():
    z, z_theirs = (torch.randn(50, 8, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    codes, g = torch.randn(50, 8), torch.randn(50, 8)
    rotated, rotated_theirs = rotate(z, codes), rotate_to(z_theirs, codes)
    close(rotated, rotated_theirs)
    assert torch.equal(rotated, codes)
    rotated.backward(g)
    rotated_theirs.backward(g)
    close(z.grad, z_theirs.grad)


@pytest.mark.parametrize("rotation", [False, True])
def test_sim_vq(rotation):
    theirs = vqp.SimVQ(4, 16, rotation_trick=rotation)
    ours = from_vector_quantize_pytorch(
        theirs.state_dict(), estimator="rotation" if rotation else "straight_through", commitment_weight=0.25
    )
    assert isinstance(ours, SimVQ)
    before = ours.codebook.detach().clone()
    train(
        ours,
        theirs,
        state=lambda: [
            (ours.book.base, theirs.frozen_codebook),
            (ours.book.transform.weight, theirs.code_transform.weight),
            (ours.codebook, theirs.codebook),
        ],
    )
    assert (ours.codebook - before).abs().max() > 0.1


@pytest.mark.parametrize("dim", [4, 6])
@pytest.mark.parametrize("levels", [(8, 5, 5, 5), (3, 4, 7, 6)])
def test_fsq(dim, levels):
    theirs = vqp.FSQ(levels=list(levels), dim=dim)
    ours = FSQ(dim, levels=levels)
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert set(missing) == {"code_age", "levels", "step"}  # theirs are not saved
    assert not unexpected
    close(ours.codebook, theirs.implicit_codebook)
    train(ours, theirs, dim=dim, state=lambda: parameter_pairs(ours, theirs))
    indices = torch.arange(ours.codebook_size).reshape(1, -1)
    close(ours.indices_to_codes(indices), theirs.indices_to_codes(indices))


@pytest.mark.parametrize("dim", [4, 6])
def test_lfq(dim):
    options = {"diversity_gamma": 0.7}
    theirs = vqp.LFQ(dim=dim, codebook_size=16, entropy_loss_weight=0.3, commitment_loss_weight=0.25, **options)
    ours = LFQ(dim, 16, entropy_weight=0.3, commitment_weight=0.25, inv_temperature=0.1, **options)
    projections = {key: value for key, value in theirs.state_dict().items() if key.startswith("project")}
    ours.load_state_dict(projections, strict=False)
    close(ours.codebook, theirs.codebook)
    mild = With(theirs, inv_temperature=0.1)
    train(ours, mild, dim=dim, state=lambda: parameter_pairs(ours, theirs))
    indices = torch.arange(16).reshape(1, -1)
    close(ours.indices_to_codes(indices), theirs.indices_to_codes(indices))


def test_lfq_entropies_are_not_clamped():
    ours = LFQ(4, 16, entropy_weight=1.0, commitment_weight=0.0, inv_temperature=2.0, diversity_gamma=0.7)
    theirs = vqp.LFQ(dim=4, codebook_size=16, entropy_loss_weight=1.0, diversity_gamma=0.7)
    z, z_theirs = latents(0).requires_grad_(), latents(0).requires_grad_()
    loss, loss_theirs = ours(z).loss, theirs(z_theirs, inv_temperature=2.0).entropy_aux_loss
    loss.backward()
    loss_theirs.backward()
    exact = latents(0).double().reshape(-1, 4).requires_grad_()
    log_p = (4.0 * exact @ ours.codebook.double().t()).log_softmax(dim=1)
    mean = log_p.exp().mean(dim=0)
    expected = -(log_p.exp() * log_p).sum(dim=1).mean() + 0.7 * (mean * mean.log()).sum()
    expected.backward()
    close(loss.double(), expected)
    close(60 * z.grad.reshape(-1, 4).double(), 60 * exact.grad)
    assert (loss_theirs - expected).abs() > 2e-6
    assert 60 * (z_theirs.grad.reshape(-1, 4) - exact.grad).abs().max() > 1e-4


@pytest.mark.parametrize("codebook_dim", [4, 3])
def test_residual_vq(codebook_dim):
    levels = 3
    theirs = vqp.ResidualVQ(
        dim=4,
        codebook_dim=codebook_dim,
        num_quantizers=levels,
        codebook_size=16,
        decay=0.8,
        commitment_weight=0.5,
        rotation_trick=False,
    )
    made = [
        from_vector_quantize_pytorch(layer.state_dict(), decay=0.8, commitment_weight=0.5) for layer in theirs.layers
    ]
    ours = ResidualVQ(4, 16, codebook_dim, num_quantizers=levels, quantizer=lambda **_: made.pop(0))
    projections = {key: value for key, value in theirs.state_dict().items() if key.startswith("project")}
    ours.load_state_dict(projections, strict=False)

    def state():
        parts = zip(ours.quantizers, theirs.layers, strict=True)
        return [pair for mine, their in parts for pair in ema_state(mine, their)]

    if codebook_dim == 4:
        train(ours, theirs, state=state, copies=levels)
    else:
        train(ours, theirs, state=lambda: [*state(), *projection_pairs(ours, theirs)], decoder=False)
    indices = torch.randint(16, (2, 5, levels))
    close(ours.indices_to_codes(indices), theirs.get_output_from_indices(indices))


@pytest.mark.parametrize("dropout", [False, True])
def test_residual_vq_hands_on_the_decoder_gradient_once(dropout):
    vq = ResidualVQ(4, 16, quantizer="ema_vq", commitment_weight=0.0, num_quantizers=4, quantizer_dropout=dropout)
    kept = set()
    for step in range(8):
        z, g = latents(step).requires_grad_(), torch.randn(3, 20, 4)
        quantized, indices, _ = vq(z)
        quantized.backward(g)
        close(z.grad, g)
        kept.add(int((indices[0, 0] >= 0).sum()))
    assert len(kept) > 1 if dropout else kept == {4}


@pytest.mark.parametrize("learnable", [False, True])
def test_losses_stay_in_evaluation(learnable):
    theirs = vqp.VectorQuantize(4, 16, learnable_codebook=learnable, ema_update=not learnable).eval()
    ours = from_vector_quantize_pytorch(theirs.state_dict(), learnable_codebook=learnable, commitment_weight=0.5).eval()
    z = latents(0)
    quantized, indices, loss = ours(z)
    quantized_theirs, indices_theirs, loss_theirs = theirs(z)
    assert torch.equal(indices, indices_theirs)
    close(quantized, quantized_theirs)
    assert loss_theirs == 0
    close(loss, (1.5 if learnable else 0.5) * F.mse_loss(quantized, z))


@pytest.mark.parametrize("codebook_dim", [4, 3])
def test_factorized_vq_in_evaluation(codebook_dim):
    theirs = vqp.VectorQuantize(4, 16, codebook_dim=codebook_dim, use_cosine_sim=True)
    for step in range(STEPS):
        theirs(latents(step))
    theirs.eval()
    ours = from_vector_quantize_pytorch(theirs.state_dict(), use_cosine_sim=True).eval()
    assert isinstance(ours, FactorizedVQ)
    z = latents(0)
    quantized, indices, _ = ours(z)
    quantized_theirs, indices_theirs, _ = theirs(z)
    assert torch.equal(indices, indices_theirs)
    close(quantized, quantized_theirs)


def test_factorized_vq_against_numpy():
    vq = FactorizedVQ(6, 16, 3, commitment_weight=0.3)
    with torch.no_grad():
        vq.book.codes *= torch.rand(16, 1) * 5 + 0.1
    x = torch.randn(40, 6)
    quantized, indices, loss = vq(x)
    w_in, b_in, w_out, b_out = (
        p.detach().double().numpy()
        for p in (vq.project_in.weight, vq.project_in.bias, vq.project_out.weight, vq.project_out.bias)
    )
    z = x.double().numpy() @ w_in.T + b_in
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    codes = vq.book.codes.detach().double().numpy()
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    expected = (z @ unit.T).argmax(axis=1)
    np.testing.assert_array_equal(indices.numpy(), expected)
    assert (expected != ((z[:, None] - codes) ** 2).sum(axis=2).argmin(axis=1)).any()
    np.testing.assert_allclose(quantized.detach().numpy(), unit[expected] @ w_out.T + b_out, atol=1e-5)
    np.testing.assert_allclose(loss.item(), 1.3 * ((z - unit[expected]) ** 2).mean(), rtol=1e-5)
