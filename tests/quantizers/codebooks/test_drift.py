from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from driftvq import NSVQ, TransVQ
from driftvq.quantizers.codebooks.drift import Drift
from driftvq.quantizers.codebooks.features import AffineFeatures, NetworkFeatures
from driftvq.quantizers.codebooks.networks import BoundedLayer
from driftvq.quantizers.codebooks.parts import Seen
from tests.quantizers.codebooks.following import Array, NumpyDrift, affine

DIM, CODES = 4, 48


def codes() -> Tensor:
    return torch.randn(CODES, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def latents(step: int, count: int = 40) -> Tensor:
    """A cloud that moves, grows and turns."""
    generator = torch.Generator().manual_seed(100 + step)
    turn = torch.eye(DIM, dtype=torch.float64)
    turn[0, 1], turn[1, 0] = 0.03 * step, -0.03 * step
    x = torch.randn(count, DIM, generator=generator, dtype=torch.float64)
    return (1 + 0.04 * step) * x @ turn + 0.1 * step


def with_tanh(codes_kd: Array, weight: Array, bias: Array) -> Array:
    return np.column_stack([affine(codes_kd), np.tanh(codes_kd @ weight.T + bias) / np.sqrt(len(bias))])


def pair(name: str) -> tuple[NSVQ | TransVQ, NumpyDrift]:
    torch.manual_seed(0)
    options = {"parts": ["drift"], "kmeans_init": False}
    if name == "ns_vq":
        ours, features = NSVQ(DIM, CODES, **options), affine
    else:
        ours = TransVQ(DIM, CODES, transform="mlp", width=12, **options)
        layer = ours.book.parts["drift"].features.network.linear
        if name == "trans_vq, zeroed":
            nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
        weight, bias = (tensor.detach().double().numpy() for tensor in (layer.weight, layer.bias))
        features = partial(with_tanh, weight=weight, bias=bias)
    ours = ours.double()
    ours.set_codebook_(codes())
    return ours, NumpyDrift(codes().numpy(), features, kinds=2 if features is affine else 3)


@pytest.mark.parametrize("name", ["ns_vq", "trans_vq", "trans_vq, zeroed"])
@pytest.mark.parametrize("count", [3, 40, 200])
def test_several_steps_match_the_equations(name: str, count: int) -> None:
    ours, expected = pair(name)
    drift, gains = ours.book.parts["drift"], []
    for step in range(16):
        z = latents(step, count)
        z[0] *= 100 if step == 5 else 1
        ours(z)
        expected.step_(z.numpy())
        np.testing.assert_allclose(ours.codebook, expected.codes, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(drift.gain, expected.gain, rtol=1e-5, atol=1e-7)
        every = torch.randn(7, DIM, dtype=torch.float64)
        for field, theirs in ((drift.velocity, expected.velocity), (drift.field, expected.field)):
            moved = expected.features(every.numpy()) @ theirs
            np.testing.assert_allclose(drift.features.moved(every, field).detach(), moved, rtol=1e-4, atol=1e-6)
        gains.append(expected.gain)
    assert max(gains) > 0.1
    assert ours.readings() == {"drift_followed": pytest.approx(gains[-1])}


def test_masked_latents_show_nothing() -> None:
    ours, expected = pair("ns_vq")
    for step in range(8):
        z = latents(step)
        mask = torch.arange(40) % 4 > 0
        ours(torch.where(mask[:, None], z, 50.0), mask)
        expected.step_(z[mask].numpy())
    np.testing.assert_allclose(ours.codebook, expected.codes, rtol=1e-5, atol=1e-7)
    assert expected.gain > 0.02


def test_a_network_that_says_nothing_leaves_the_affine_field() -> None:
    """The codes go where an affine map takes them, as those of NSVQ do."""
    ours, _ = pair("trans_vq, zeroed")
    for step in range(12):
        before = ours.codebook.clone()
        ours(latents(step))
    moved = (ours.codebook - before).numpy()
    design = np.column_stack([before.numpy(), np.ones(CODES)])
    fitted = design @ np.linalg.lstsq(design, moved, rcond=None)[0]
    np.testing.assert_allclose(moved, fitted, atol=1e-10)
    assert np.abs(moved).max() > 0.01
    with_network, _ = pair("trans_vq")
    for step in range(12):
        before = with_network.codebook.clone()
        with_network(latents(step))
    moved = (with_network.codebook - before).numpy()
    design = np.column_stack([before.numpy(), np.ones(CODES)])
    assert np.abs(moved - design @ np.linalg.lstsq(design, moved, rcond=None)[0]).max() > 1e-4


def test_a_translation_is_tracked_by_batches_smaller_than_a_fit_needs() -> None:
    """Four latents a step in 16 dimensions: an affine map has 17 rows, of which one batch shows four."""
    behind = {}
    for parts in (["drift"], ["drift", "winners", "relocation"], ["winners", "relocation"]):
        generator = torch.Generator().manual_seed(0)
        vq = NSVQ(dim=16, codebook_size=64, parts=parts)
        vq.set_codebook_(torch.randn(64, 16, generator=generator))
        for step in range(300):
            vq(torch.randn(4, 16, generator=generator) + 0.02 * step)
        behind[len(parts)] = (vq.codebook.mean(dim=0) - 0.02 * 300).square().mean().sqrt().item()
    assert behind[3] < 0.5
    assert behind[1] < 0.8
    assert behind[2] > 1


def seen_by(count: int) -> Seen:
    generator = torch.Generator().manual_seed(3)
    codes_kd, away = (torch.randn(size, DIM, generator=generator, dtype=torch.float64) for size in (CODES, count))
    counted = torch.rand(count, generator=generator) < 0.7
    winners = torch.randint(CODES, (count,), generator=generator)
    away = torch.where(counted[:, None], away, 0)
    sums = torch.zeros(CODES, DIM + 1, dtype=torch.float64)
    sums.index_add_(0, winners, torch.cat([away, counted[:, None]], dim=1))
    return Seen(codes_kd, winners, away, counted, sums)


def trained_drift() -> Drift:
    torch.manual_seed(0)
    drift = Drift(NetworkFeatures(DIM, BoundedLayer(DIM, 5), 5, together=False)).double()
    nn.init.normal_(drift.field)
    drift.gain.fill_(0.6)
    return drift


@pytest.mark.parametrize("count", [30, 200])
def test_the_loss_and_its_gradient_agree_with_numpy_and_finite_differences(count: int) -> None:
    """The loss is the error of the field's prediction of where the latents went, which is not differentiated.

    With fewer latents than codes, and with more, where the codes with the means of their latents stand for them.
    """
    drift = trained_drift()
    seen = drift.prepare(seen_by(count))
    layer = drift.features.network.linear
    weight, bias = layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()
    kept = seen.counted.numpy()
    field, win = drift.field.numpy(), seen.winners.numpy()[kept]
    away, codes_nd = seen.away.numpy()[kept], seen.codes.numpy()[win]

    def along(weight: Array, bias: Array) -> Array:
        return np.column_stack([np.ones(len(codes_nd)), codes_nd, np.tanh(codes_nd @ weight.T + bias)]) @ field

    went = away + 0.6 * along(weight, bias)

    def loss(weight: Array, bias: Array) -> float:
        return float(np.square(went - along(weight, bias)).mean())

    found = drift.loss(seen, unit=torch.tensor(4.0))
    found.backward()
    assert found.item() == pytest.approx(loss(weight, bias))
    for values, gradient in ((weight, layer.weight.grad), (bias, layer.bias.grad)):
        expected = np.zeros_like(values)
        for place in np.ndindex(values.shape):
            ends = []
            for step in (1e-6, -2e-6):
                values[place] += step
                ends.append(loss(weight, bias))
            values[place] += 1e-6
            expected[place] = (ends[0] - ends[1]) / 2e-6
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(4 * gradient, expected, rtol=1e-5, atol=1e-8)


def test_the_affine_drift_has_nothing_to_train() -> None:
    drift = Drift(AffineFeatures(DIM)).double()
    assert not drift.trained
    assert not list(drift.parameters())
    assert trained_drift().trained
