import numpy as np
import pytest
import torch

from driftvq import SimVQ, TransVQPaper
from driftvq.functional import kmeans
from driftvq.quantizers.codebooks.networks import LinearAttention

every_form = pytest.mark.parametrize("transform", ["attention", "mlp"])


@every_form
def test_with_a_residual_it_starts_as_the_base_codebook_exactly(transform: str) -> None:
    vq = TransVQPaper(dim=6, codebook_size=32, transform=transform, residual=True, kmeans_init=False)
    assert torch.equal(vq.codebook, vq.book.base)
    plain = TransVQPaper(dim=6, codebook_size=32, transform=transform, kmeans_init=False)
    assert not torch.allclose(plain.codebook, plain.book.base, atol=0.1)


@every_form
@pytest.mark.parametrize("residual", [False, True])
def test_only_the_transform_is_trained_and_one_step_moves_every_code(transform: str, residual: bool) -> None:
    torch.manual_seed(0)
    vq = TransVQPaper(dim=6, codebook_size=32, transform=transform, residual=residual, kmeans_init=False)
    assert all(name.startswith("book.transform.") for name, _ in vq.named_parameters())
    base, before = vq.book.base.clone(), vq.codebook.detach().clone()
    optimizer = torch.optim.SGD(vq.parameters(), lr=0.1)
    vq(torch.randn(1, 6)).loss.backward()
    optimizer.step()
    assert ((vq.codebook - before).abs().sum(dim=1) > 0).all()
    assert torch.equal(vq.book.base, base)


def test_linear_attention_matches_its_quadratic_form() -> None:
    torch.manual_seed(0)
    layer = LinearAttention(8).double()
    x = torch.randn(20, 8, dtype=torch.float64)
    q, k, v = (x.numpy() @ to.weight.detach().numpy().T for to in (layer.to_q, layer.to_k, layer.to_v))

    def feature(a: np.ndarray) -> np.ndarray:
        return np.where(a > 0, a + 1, np.exp(np.minimum(a, 0)))

    scores = feature(q) @ feature(k).T
    mixed = scores / (scores.sum(axis=1, keepdims=True) + 1e-6) @ v
    np.testing.assert_allclose(layer(x).detach(), mixed @ layer.to_out.weight.detach().numpy().T, rtol=1e-9)


def error_of_fit(vq: TransVQPaper | SimVQ, target: torch.Tensor, steps: int = 1000) -> float:
    """Relative error of the codebook after regression onto a target codebook."""
    optimizer = torch.optim.Adam(vq.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (vq.codebook - target).square().mean().backward()
        optimizer.step()
    return ((vq.codebook - target).square().mean() / target.var()).item()


@every_form
@pytest.mark.parametrize("residual", [False, True])
def test_reaches_any_codebook_where_a_linear_map_does_not(transform: str, residual: bool) -> None:
    torch.manual_seed(0)
    target = torch.randn(16, 1).sort(dim=0).values.exp()
    errors = []
    for vq in (TransVQPaper(dim=1, codebook_size=16, transform=transform, residual=residual), SimVQ(1, 16)):
        vq.set_codebook_(torch.linspace(-1, 1, 16)[:, None])
        errors.append(error_of_fit(vq, target))
    assert errors[0] < 0.02
    assert errors[1] > 0.5


@every_form
def test_the_codebook_is_kept_in_evaluation_until_something_changes(transform: str) -> None:
    torch.manual_seed(0)
    vq = TransVQPaper(dim=6, codebook_size=32, transform=transform, kmeans_init=False).eval()
    first = vq.codebook
    assert vq.codebook is first
    vq(torch.randn(5, 6))
    assert vq.codebook is first
    with torch.no_grad():
        next(vq.book.transform.parameters()).mul_(2)
    moved = vq.codebook
    assert torch.equal(moved, vq.book.transform(vq.book.base))
    assert not torch.allclose(moved, first)
    twin = TransVQPaper(dim=6, codebook_size=32, transform=transform, kmeans_init=False)
    vq.load_state_dict(twin.state_dict())
    assert torch.equal(vq.codebook, twin.eval().codebook)
    assert vq.double().codebook.dtype == torch.float64


def test_the_base_is_the_k_means_of_the_first_latents_and_stays() -> None:
    x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
    vq = TransVQPaper(dim=4, codebook_size=32)
    for batch in (x[:32], x[32:], torch.randn(64, 4)):  # four latents per code; k-means takes the last batch
        vq(batch)
    assert torch.equal(vq.book.base, kmeans(x[32:], 32, 10, "l2", torch.Generator().manual_seed(0)).codebook)


def test_sizes_are_the_papers() -> None:
    block = TransVQPaper(dim=6, codebook_size=32).book.transform
    assert block.in_proj.weight.shape == (256, 6)
    assert block.blocks[0].ffn.fc1.weight.shape == (512, 256)
    assert len(block.blocks) == 1
    mlp = TransVQPaper(dim=6, codebook_size=32, transform="mlp").book.transform
    assert [tuple(layer.weight.shape) for layer in (mlp[0], mlp[2])] == [(512, 6), (6, 512)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": "cnn"}, "transform must be one of 'attention', 'mlp', got 'cnn'"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
    ],
)
def test_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransVQPaper(dim=6, codebook_size=32, **options)
