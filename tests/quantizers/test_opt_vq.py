import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch.utils.checkpoint import checkpoint

from driftvq import OptVQ, ResidualVQ
from tests.functional.test_transport import cloud


def sinkhorn(cost: np.ndarray, iterations: int) -> np.ndarray:
    """Rows, then columns, of the plan brought to their sums, in the plain domain."""
    plan = np.exp(-cost)
    for _ in range(iterations):
        plan /= plan.sum(axis=1, keepdims=True)
        plan /= plan.sum(axis=0, keepdims=True)
    return plan


@pytest.mark.parametrize("iterations", [1, 5])
def test_assigns_as_sinkhorn_does(iterations: int) -> None:
    codes, z = cloud(12, 3, 0), cloud(200, 3, 1)
    vq = OptVQ(dim=3, codebook_size=12, iterations=iterations, sharpness=4.0).double()
    vq.set_codebook_(torch.tensor(codes))
    squares = cdist(z, codes) ** 2
    plan = sinkhorn(4 * (squares - squares.mean()) / squares.std(), iterations)
    indices = vq(torch.tensor(z)).indices
    np.testing.assert_array_equal(indices, plan.argmax(axis=1))
    assert (indices.numpy() != squares.argmin(axis=1)).any()
    np.testing.assert_array_equal(vq.eval()(torch.tensor(z)).indices, squares.argmin(axis=1))


def test_remembered_prices_balance_what_is_asked_for() -> None:
    torch.manual_seed(0)
    vq = OptVQ(dim=2, codebook_size=8)
    codes = torch.cat([torch.randn(7, 2) * 0.1, torch.full((1, 2), 4.0)])  # one code is far from every latent
    vq.set_codebook_(codes)
    z = torch.randn(4000, 2)
    for _ in range(100):
        counts = vq(z).indices.bincount(minlength=8)
    # The others lie on top of each other and share what they are asked for.
    assert counts[7] > 4000 / 8
    assert vq.eval()(z).indices.bincount(minlength=8)[7] < 4000 / 8 / 10


def test_loss_follows_the_assignment() -> None:
    codes, z = cloud(12, 3, 0), cloud(50, 3, 1)
    vq = OptVQ(dim=3, codebook_size=12, commitment_weight=0.5).double()
    vq.set_codebook_(torch.tensor(codes))
    _, indices, loss = vq(torch.tensor(z))
    assert loss.item() == pytest.approx(1.5 * np.mean((z - codes[indices.numpy()]) ** 2))


def test_an_offset_of_latents_and_codes_costs_no_precision() -> None:
    codes, z = (torch.tensor(cloud(n, 3, seed), dtype=torch.float32) + 1000 for n, seed in ((12, 0), (200, 1)))
    found = []
    for dtype in (torch.float32, torch.float64):
        vq = OptVQ(dim=3, codebook_size=12).to(dtype)
        vq.set_codebook_(codes.to(dtype))
        found.append(vq(z.to(dtype)).indices)
    assert torch.equal(*found)


def test_scale_of_the_latents_does_not_matter() -> None:
    codes, z = torch.tensor(cloud(12, 3, 0)), torch.tensor(cloud(200, 3, 1))
    found = []
    for scale in (1.0, 1e-4):
        vq = OptVQ(dim=3, codebook_size=12).double()
        vq.set_codebook_(scale * codes)
        found.append(vq(scale * z).indices)
    assert torch.equal(*found)


def test_prices_of_a_shared_codebook_are_those_of_all_levels_together() -> None:
    codes, z = cloud(12, 3, 0), torch.tensor(cloud(200, 3, 1))
    vq = ResidualVQ(3, 12, num_quantizers=2, quantizer="opt_vq", shared_codebook=True).double()
    vq.part(0).set_codebook_(torch.tensor(codes))
    first, _ = vq.details(z).parts
    latents = np.concatenate([z, z - first.quantized.detach()])
    squares = cdist(latents, codes) ** 2
    asked = sinkhorn(10 * (squares - squares.mean()) / squares.std(), 1)
    found = vq.part(0).book.prices.numpy() - 10 * squares / squares.std()
    np.testing.assert_array_equal(found.argmax(axis=1), asked.argmax(axis=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_learns_prices_in_a_checkpoint_that_runs_without_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, vq, twin = torch.randn(200, 3, dtype=dtype, requires_grad=True), *(OptVQ(3, 12).to(dtype) for _ in range(2))
    twin.load_state_dict(vq.state_dict())
    indices = [checkpoint(vq, x, use_reentrant=True)[1], twin(x).indices]
    assert torch.equal(*indices)
    assert torch.equal(vq.book.prices, twin.book.prices)
    assert vq.book.prices.any()
