import copy

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import nn

from driftvq import ResidualVQ, SimVQ, TransVQ
from driftvq.functional import fit_drift, kmeans
from driftvq.quantizers import follow
from driftvq.quantizers.pace import STEP_SHARE
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
    assert paper.pace is None
    assert published.pace is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": "cnn"}, "transform must be one of 'attention', 'mlp', got 'cnn'"),
        ({"transform": "mlp", "code_embedding": True}, "needs transform='attention'"),
        ({"residual": False, "follow": True}, "follow=True needs residual=True, got residual=False"),
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


def cloud(n: int = 2000, dim: int = 4, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(20, dim, generator=torch.Generator().manual_seed(0))
    return centres[torch.randint(20, (n,), generator=generator)] + 0.5 * torch.randn(n, dim, generator=generator)


def train(vq: TransVQ, batches: list[torch.Tensor], lr: float = 1e-3) -> None:
    optimizer = torch.optim.Adam(vq.parameters(), lr=lr)
    for x in batches:
        optimizer.zero_grad()
        vq(x).loss.backward()
        optimizer.step()


@every_form
def test_starts_as_the_k_means_codebook_exactly(transform: str) -> None:
    x = cloud(64)
    vq = TransVQ(dim=4, codebook_size=32, transform=transform)
    codebook = kmeans(x, 32, 10, "l2", torch.Generator().manual_seed(0)).codebook
    quantized, indices, _ = vq(x)
    torch.testing.assert_close(quantized, codebook[indices])
    assert torch.equal(vq.codebook, codebook)
    assert torch.equal(vq.eval().codebook, codebook)
    vq.train()(cloud(64, seed=1))
    assert not torch.equal(vq.base_codebook, codebook)


@every_form
def test_latents_of_another_scale_give_codes_of_that_scale(transform: str) -> None:
    codebooks = []
    for scale in (1.0, 1e3, 1e-3):
        torch.manual_seed(0)
        vq = TransVQ(dim=4, codebook_size=32, transform=transform, width=32).double()
        train(vq, [scale * (cloud(200, seed=step).double() + 0.05 * step) for step in range(30)])
        assert vq.pace.movement.min() > 0
        readings = vq.readings()
        assert [readings["codes_step"], readings["latents_step"]] == vq.pace.movement.tolist()
        codebooks.append(vq.codebook.detach() / scale)
    torch.testing.assert_close(codebooks[1], codebooks[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(codebooks[2], codebooks[0], rtol=1e-5, atol=1e-5)


@every_form
@pytest.mark.parametrize("lr", [5e-4, 5e-3])
def test_an_encoder_of_few_dimensions_does_not_run_away(transform: str, lr: float) -> None:
    torch.manual_seed(0)
    x, generator = torch.randn(2000, 8), torch.Generator().manual_seed(0)
    encoder = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3))
    decoder = nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 8))
    vq = TransVQ(dim=3, codebook_size=64, transform=transform, width=64)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *vq.parameters()], lr=lr)
    for _ in range(300):
        batch = x[torch.randint(2000, (128,), generator=generator)]
        quantized, _, loss = vq(encoder(batch))
        (loss + (decoder(quantized) - batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    z = encoder(x)
    quantized, indices, _ = vq.eval()(z)
    assert indices.unique().numel() == 64
    assert (quantized - z).square().mean() < 0.1 * z.var()
    assert (decoder(quantized) - x).square().mean() < 0.85


@every_form
@pytest.mark.parametrize("dim", [3, 64])
def test_every_code_stays_alive_throughout_a_drift(transform: str, dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    vq = TransVQ(dim=dim, codebook_size=128, transform=transform, width=32)
    x = torch.randn(4096, dim, generator=generator)
    moved = [x * 1.01**step + 0.02 * step for step in range(150)]
    for done in range(0, 150, 50):
        batches = [cloud[torch.randint(4096, (256,), generator=generator)] for cloud in moved[done : done + 50]]
        train(vq.train(), batches)
        assert vq.eval()(moved[done + 49]).indices.unique().numel() >= 0.98 * 128


@every_form
def test_settles_near_the_k_means_of_a_frozen_encoder(transform: str) -> None:
    x, generator = cloud(), torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    vq = TransVQ(dim=4, codebook_size=32, transform=transform, width=32)
    train(vq, [x[torch.randint(len(x), (256,), generator=generator)] for _ in range(400)], lr=5e-3)
    quantized, indices, _ = vq.eval()(x)
    assert indices.unique().numel() == 32
    assert (quantized - x).square().sum() < 1.03 * KMeans(32, n_init=10, random_state=0).fit(x.numpy()).inertia_


@every_form
def test_comes_to_rest_on_a_frozen_encoder(transform: str) -> None:
    x, generator = cloud(), torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    vq = TransVQ(dim=4, codebook_size=32, transform=transform, width=32)
    train(vq, [x[torch.randint(len(x), (256,), generator=generator)] for _ in range(1200)])
    assert vq.pace.movement[0] < 0.01


@every_form
def test_codes_do_not_outrun_the_latents(transform: str) -> None:
    torch.manual_seed(0)
    vq = TransVQ(dim=4, codebook_size=32, transform=transform, width=32)
    train(vq, [cloud(200, seed=step) + 0.5 * step for step in range(20)])
    before = vq.base_codebook.clone()
    with torch.no_grad():
        vq.transform.out.bias.add_(100)
    step = (vq.codebook.detach() - before).square().sum(dim=1).mean().sqrt().item()
    assert step == pytest.approx(STEP_SHARE * vq.follower.latents_step.item(), rel=1e-4)
    assert 0 < step < 0.5


@every_form
def test_a_run_continues_from_its_state_dict(transform: str) -> None:
    torch.manual_seed(0)
    vq = TransVQ(dim=4, codebook_size=32, transform=transform, width=32)
    train(vq, [cloud(200, seed=step) + 0.05 * step for step in range(10)])
    twin = TransVQ(dim=4, codebook_size=32, transform=transform, width=32)
    twin.load_state_dict(copy.deepcopy(vq.state_dict()))
    for quantizer in (vq, twin):
        train(quantizer, [cloud(200, seed=step) + 0.05 * step for step in range(10, 15)])
    for (name, a), b in zip(vq.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_evaluation_needs_no_network() -> None:
    vq = TransVQ(dim=4, codebook_size=32)
    train(vq, [cloud(200, seed=step) for step in range(3)])
    vq.eval()
    assert vq.codebook is vq.base_codebook
    vq.transform = nn.Identity()
    quantized, indices, _ = vq(cloud(50))
    assert torch.equal(vq.indices_to_codes(indices), quantized)


@pytest.mark.parametrize("masked", [False, True])
def test_a_step_fits_the_drift_once(monkeypatch: pytest.MonkeyPatch, masked: bool) -> None:
    fits = []
    monkeypatch.setattr(follow, "fit_drift", lambda moments: fits.append(moments) or fit_drift(moments))
    vq = TransVQ(dim=4, codebook_size=16, transform="mlp")
    for step in range(6):
        x = torch.randn(100, 4, generator=torch.Generator().manual_seed(step))
        vq(x, torch.arange(100) > 10 if masked else None)
    assert len(fits) == 6  # the first step, in which the codebook starts, fits one for φ alone


def test_levels_with_one_codebook_follow_the_drift_of_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []
    monkeypatch.setattr(follow, "fit_drift", lambda moments: fits.append(moments) or fit_drift(moments))
    vq = ResidualVQ(dim=4, codebook_size=16, num_quantizers=3, quantizer="trans_vq", shared_codebook=True)
    for step in range(4):
        vq(torch.randn(100, 4, generator=torch.Generator().manual_seed(step)))
    assert [int(moments.latents) for moments in fits[-4:]] == [100, 100, 100, 300]
