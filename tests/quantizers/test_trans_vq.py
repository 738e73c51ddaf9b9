"""TransVQ itself; what it shares with NSVQ is in test_following.py, its parts are in codebooks/."""

import pytest
import torch
from torch import Tensor, nn

from driftvq import TransVQ
from tests.quantizers.test_following import cloud, train

every_form = pytest.mark.parametrize("transform", ["attention", "mlp"])


@every_form
def test_only_the_network_is_trained(transform: str) -> None:
    vq = TransVQ(dim=6, codebook_size=32, transform=transform)
    trained = [name for name, _ in vq.named_parameters()]
    assert trained
    assert all(name.startswith("book.parts.drift.features.network.") for name in trained)


@every_form
def test_one_step_of_a_drift_moves_every_code_whatever_was_selected(transform: str) -> None:
    torch.manual_seed(0)
    vq = TransVQ(dim=6, codebook_size=32, transform=transform, parts=["drift"])
    vq.set_codebook_(torch.randn(32, 6))
    for step in range(20):
        before = vq.codebook.clone()
        vq(torch.randn(4, 6) + 0.2 * step)
    assert vq.book.parts["drift"].gain > 0
    assert ((vq.codebook - before).abs().sum(dim=1) > 0).all()


def test_attention_moves_a_code_by_what_the_others_are() -> None:
    """And the MLP does not: each code by itself."""
    for transform, depends in (("attention", True), ("mlp", False)):
        torch.manual_seed(0)
        features = TransVQ(dim=6, codebook_size=32, transform=transform).book.parts["drift"].features
        codes = torch.randn(32, 6)
        others = torch.cat([codes[:1], torch.randn(31, 6)])
        assert torch.allclose(features(codes)[0], features(others)[0], atol=1e-6) != depends


@every_form
def test_the_network_learns_which_directions_matter(transform: str) -> None:
    """Codes on either side go apart: affine features cannot say so, the network's error falls as φ is trained."""
    torch.manual_seed(0)
    vq = TransVQ(dim=4, codebook_size=64, transform=transform, width=16)
    vq.set_codebook_(torch.randn(64, 4))
    drift = vq.book.parts["drift"]
    train(vq, [apart(step) for step in range(18)])  # a look is due next
    first = {name: parameter.detach().clone() for name, parameter in vq.named_parameters()}
    vq.train()
    optimizer = torch.optim.Adam(vq.parameters(), lr=1e-2)
    field, errors = drift.field.clone(), []
    for _ in range(100):
        optimizer.zero_grad()
        loss = vq.book.match(apart(18), vq.codebook, None).loss  # nothing is learned from it but φ
        loss.backward()
        optimizer.step()
        errors.append(loss.item())
    assert torch.equal(drift.field, field)
    assert errors[-1] < errors[0]
    assert any(not torch.equal(first[name], parameter) for name, parameter in vq.named_parameters())


def apart(step: int) -> Tensor:
    x = torch.randn(128, 4, generator=torch.Generator().manual_seed(step))
    return x + 0.1 * step * x[:, :1].sign()


@every_form
@pytest.mark.parametrize("latents", [20, 200])
def test_masked_latents_do_not_count_in_the_gradient_of_the_network(transform: str, latents: int) -> None:
    gradients = []
    mask = torch.arange(latents) % 3 > 0
    for masked in (True, False):
        torch.manual_seed(0)
        vq = TransVQ(dim=4, codebook_size=32, transform=transform, width=16).double()
        train(vq, [cloud(200, seed=step).double() + 0.1 * step for step in range(11)])
        vq.zero_grad()
        z = cloud(latents, seed=9).double() + 1
        vq(z, mask).loss.backward() if masked else vq(z[mask]).loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in vq.parameters()]))
    assert gradients[1].abs().max() > 1e-6
    torch.testing.assert_close(*gradients)


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
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    vq = TransVQ(dim=dim, codebook_size=128, transform=transform, width=32)
    x = torch.randn(4096, dim, generator=generator)
    moved = [x * 1.01**step + 0.02 * step for step in range(150)]
    for done in range(0, 150, 50):
        train(vq, [at[torch.randint(4096, (256,), generator=generator)] for at in moved[done : done + 50]])
        assert vq.eval()(moved[done + 49]).indices.unique().numel() >= 0.98 * 128


@every_form
def test_comes_to_rest_on_a_frozen_encoder(transform: str) -> None:
    x, generator = cloud(2000), torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    vq = TransVQ(dim=4, codebook_size=32, transform=transform, width=32)
    train(vq, [x[torch.randint(len(x), (256,), generator=generator)] for _ in range(1200)])
    before = vq.codebook.clone()
    train(vq, [x[torch.randint(len(x), (256,), generator=generator)]])
    assert (vq.codebook - before).norm(dim=1).mean() < 0.01 * before.std()


def test_evaluation_needs_no_network() -> None:
    vq = TransVQ(dim=4, codebook_size=32)
    train(vq, [cloud(200, seed=step) for step in range(3)])
    vq.eval()
    assert vq.codebook is vq.book.codes
    del vq.book.parts["drift"].features.network
    quantized, indices, _ = vq(cloud(50))
    assert torch.equal(vq.indices_to_codes(indices), quantized)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": "cnn"}, "transform must be one of 'attention', 'mlp', got 'cnn'"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
    ],
)
def test_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransVQ(dim=6, codebook_size=32, **options)


def test_the_loss_is_how_far_the_field_misses_in_the_units_of_the_latents() -> None:
    torch.manual_seed(0)
    vq = TransVQ(dim=4, codebook_size=32, transform="mlp", width=16, commitment_weight=0.0).double()
    train(vq, [cloud(200, seed=step).double() + 0.3 * step for step in range(8)])
    book, drift = vq.book, vq.book.parts["drift"]
    drift.gain.fill_(0.3)  # followed in full, a field is not judged
    codes, z = vq.codebook.clone(), cloud(20, seed=9).double() + 2
    winners = (z[:, None] - codes).square().sum(dim=2).argmin(dim=1)
    features = drift.features((codes - book.origin) / book.spread)[winners]
    length = book.spread * features @ drift.field
    missed = z - codes[winners] + drift.gain * length - length
    assert vq.train()(z).loss.item() == pytest.approx(missed.square().mean().item(), rel=1e-6)
