import numpy as np
import pytest
import torch

from driftvq import SimVQ, TransVQ
from driftvq.quantizers.transforms import LinearAttention

every_form = pytest.mark.parametrize("transform", ["attention", "mlp"])


@every_form
def test_starts_as_the_base_codebook_exactly(transform: str) -> None:
    vq = TransVQ(dim=6, codebook_size=32, transform=transform, kmeans_init=False)
    assert torch.equal(vq.codebook, vq.base_codebook)


@every_form
def test_only_the_transform_is_trained_and_one_step_moves_every_code(transform: str) -> None:
    torch.manual_seed(0)
    vq = TransVQ(dim=6, codebook_size=32, transform=transform, kmeans_init=False)
    assert all(name.startswith("transform.") for name, _ in vq.named_parameters())
    base = vq.base_codebook.clone()
    optimizer = torch.optim.SGD(vq.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        vq(torch.randn(1, 6)).loss.backward()
        optimizer.step()
    assert ((vq.codebook - base).abs().sum(dim=1) > 0).all()
    assert torch.equal(vq.base_codebook, base)


def test_linear_attention_matches_its_quadratic_form() -> None:
    torch.manual_seed(0)
    layer = LinearAttention(8).double()
    x = torch.randn(20, 8, dtype=torch.float64)
    q, k, v = (x.numpy() @ to.weight.detach().numpy().T for to in (layer.to_q, layer.to_k, layer.to_v))

    def feature(a: np.ndarray) -> np.ndarray:
        return np.where(a > 0, a + 1, np.exp(np.minimum(a, 0)))

    scores = feature(q) @ feature(k).T
    mixed = scores / scores.sum(axis=1, keepdims=True) @ v
    expected = mixed @ layer.out.weight.detach().numpy().T + layer.out.bias.detach().numpy()
    np.testing.assert_allclose(layer(x).detach(), expected)


def fit(vq: TransVQ | SimVQ, target: torch.Tensor, steps: int = 400) -> float:
    """Relative error of the codebook after regression onto a target codebook."""
    optimizer = torch.optim.Adam(vq.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        (vq.codebook - target).square().mean().backward()
        optimizer.step()
    error = (vq.codebook - target).square().mean() / target.var()
    return error.item()


@every_form
def test_reaches_any_codebook_where_a_linear_map_does_not(transform: str) -> None:
    torch.manual_seed(0)
    target = torch.randn(16, 1).sort(dim=0).values.exp()
    errors = []
    for vq in (TransVQ(dim=1, codebook_size=16, transform=transform, kmeans_init=False), SimVQ(1, 16)):
        vq.base_codebook.copy_(torch.linspace(-1, 1, 16)[:, None])
        errors.append(fit(vq, target))
    assert errors[0] < 0.02
    assert errors[1] > 0.5


@every_form
def test_the_codebook_is_kept_in_evaluation_until_something_changes(transform: str) -> None:
    torch.manual_seed(0)
    vq = TransVQ(dim=6, codebook_size=32, transform=transform, kmeans_init=False).eval()
    first = vq.codebook
    assert vq.codebook is first
    vq(torch.randn(5, 6))
    assert vq.codebook is first
    with torch.no_grad():
        vq.transform.out.bias.add_(1)
    assert torch.allclose(vq.codebook, first + 1, atol=1e-6)
    moved = vq.codebook
    twin = TransVQ(dim=6, codebook_size=32, transform=transform, kmeans_init=False)
    vq.load_state_dict(twin.state_dict())
    assert not torch.allclose(vq.codebook, moved)
    assert vq.double().codebook.dtype == torch.float64


def test_indices_look_up_the_whole_transformed_codebook() -> None:
    torch.manual_seed(0)
    vq = TransVQ.published(dim=6, codebook_size=32).eval()
    quantized, indices, _ = vq(torch.randn(2, 5, 6))
    assert torch.equal(vq.indices_to_codes(indices[:1, :2]), quantized[:1, :2])
    subset = vq.transform.attention(vq.transform.attention_norm(vq.transform.embed(vq.base_codebook[:3])))
    whole = vq.transform.attention(vq.transform.attention_norm(vq.transform.embed(vq.base_codebook)))[:3]
    assert not torch.allclose(subset, whole, atol=1e-4)


def test_named_forms() -> None:
    paper = TransVQ.paper(dim=6, codebook_size=32)
    assert not paper.transform.residual
    assert paper.transform.embed.out_features == 256
    assert paper.transform.mlp_in.out_features == 512
    published = TransVQ.published(dim=6, codebook_size=32)
    assert published.transform.code_embedding.shape == (32, 256)
    assert published.start.done
    assert not paper.start.done


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": "cnn"}, "transform must be one of 'attention', 'mlp', got 'cnn'"),
        ({"transform": "mlp", "code_embedding": True}, "needs transform='attention'"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
    ],
)
def test_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransVQ(dim=6, codebook_size=32, **options)


def test_attention_form_is_attention_then_mlp_with_residuals() -> None:
    torch.manual_seed(0)
    p = TransVQ.published(dim=6, codebook_size=32, width=16).transform.double()
    codes = torch.randn(32, 6, dtype=torch.float64)
    x = p.embed(codes) + p.code_embedding
    x = x + p.attention(p.attention_norm(x))
    x = x + p.mlp_out(torch.nn.functional.gelu(p.mlp_in(p.mlp_norm(x))))
    assert torch.allclose(p(codes), p.out(x))
