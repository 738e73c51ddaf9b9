import numpy as np
import pytest
import torch

from driftvq import NSVQ, VQ, Modified, Quantizer


def weights(z: np.ndarray, codes: np.ndarray, bandwidth: float) -> tuple[np.ndarray, np.ndarray]:
    distance = ((z[:, None] - codes[None]) ** 2).sum(axis=2)
    logits = -distance / bandwidth
    soft = np.exp(logits - logits.max(axis=1, keepdims=True))
    soft /= soft.sum(axis=1, keepdims=True)
    win = distance.argmin(axis=1)
    soft[np.arange(len(z)), win] = 1
    return soft, win


def test_online_update_matches_the_formula() -> None:
    torch.manual_seed(0)
    options = {"update": "online", "kmeans_init": False, "bandwidth": 0.5, "rate": 0.2, "mass_floor": 0.1}
    vq = NSVQ(dim=3, codebook_size=10, **options).double()
    torch.nn.init.normal_(vq.codes)
    for seed in range(3):
        z = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        codes = vq.codes.detach().numpy().copy()
        nearest = ((z.numpy()[:, None] - codes[None]) ** 2).sum(axis=2).min(axis=1)
        w, win = weights(z.numpy(), codes, 0.5 * nearest.mean())
        quantized, indices, loss = vq(z)
        np.testing.assert_array_equal(indices, win)
        np.testing.assert_allclose(quantized.detach(), codes[win])
        assert loss.item() == pytest.approx(0.25 * nearest.mean() / 3)
        mass = w.sum(axis=0)
        mean = w.T @ z.numpy() / mass[:, None]
        expected = codes + (0.2 * mass / (mass + 0.1))[:, None] * (mean - codes)
        np.testing.assert_allclose(vq.codes.detach(), expected, rtol=1e-9)
        assert vq.scale.item() == pytest.approx(nearest.mean())


def test_paper_form_moves_each_code_by_equation_17() -> None:
    torch.manual_seed(0)
    vq = NSVQ.paper(dim=3, codebook_size=10, kmeans_init=False).double()
    torch.nn.init.normal_(vq.codes)
    z = torch.randn(1, 3, dtype=torch.float64)
    codes = vq.codes.detach().clone()
    vq(z).loss.backward()
    distance = (z - codes).square().sum(dim=1)
    w = torch.exp(-distance)
    w[distance.argmin()] = 1
    assert torch.allclose(vq.codes.grad, -2 / 3 * w[:, None] * (z - codes))


def test_published_form_scales_and_clamps_the_softmax() -> None:
    torch.manual_seed(0)
    vq = NSVQ.published(dim=3, codebook_size=200).double()
    z = torch.randn(5, 3, dtype=torch.float64)
    codes = vq.codes.detach().clone()
    vq(z).loss.backward()
    distance = torch.cdist(z, codes).square()
    w = (torch.softmax(-distance, dim=1) * 2).clamp(max=1)
    w.scatter_(1, distance.argmin(dim=1, keepdim=True), 1)
    expected = 2 / 15 * (w.sum(dim=0)[:, None] * codes - w.T @ z)
    assert torch.allclose(vq.codes.grad, expected)
    assert vq.estimator == Modified(divisor="elements")


def test_delta_e_spreads_the_decoders_gradient() -> None:
    torch.manual_seed(0)
    vq = NSVQ.delta_e(dim=3, codebook_size=10, kmeans_init=False).double()
    torch.nn.init.normal_(vq.codes)
    z, gradient = torch.randn(2, 20, 3, dtype=torch.float64)
    mask = torch.arange(20) < 15
    (vq(z, mask).quantized * gradient).sum().backward()
    distance = torch.cdist(z, vq.codes.detach()).square()
    w = torch.exp(-distance).scatter_(1, distance.argmin(dim=1, keepdim=True), 0)
    assert torch.allclose(vq.codes.grad, (w * mask[:, None]).T @ gradient)


def test_bandwidth_decays_by_hand_or_by_itself_and_is_saved() -> None:
    vq = NSVQ.paper(dim=3, codebook_size=10, kmeans_init=False)
    vq.decay_bandwidth_()
    assert vq.bandwidth.item() == pytest.approx(0.9)
    own = NSVQ.paper(dim=3, codebook_size=10, kmeans_init=False, decay_every=2)
    for _ in range(5):
        own(torch.randn(8, 3))
    assert own.bandwidth.item() == pytest.approx(0.81)
    own.eval()
    own(torch.randn(8, 3))
    assert own.bandwidth.item() == pytest.approx(0.81)
    twin = NSVQ.paper(dim=3, codebook_size=10, kmeans_init=False)
    twin.load_state_dict(own.state_dict())
    assert twin.bandwidth.item() == pytest.approx(0.81)
    assert twin.readings() == {"bandwidth": pytest.approx(0.81)}


@pytest.mark.parametrize("update", ["follow", "online"])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_does_not_depend_on_the_scale_of_the_latents(scale: float, update: str) -> None:
    outputs = []
    for factor in (1.0, scale):
        vq = NSVQ(dim=4, codebook_size=32, update=update)
        for seed in range(6):
            z = torch.randn(80, 4, generator=torch.Generator().manual_seed(seed))
            indices = vq(z * factor).indices
        outputs.append((indices, vq.codes.detach() / factor))
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.allclose(outputs[0][1], outputs[1][1], rtol=1e-3, atol=1e-5)


def drift(vq: Quantizer, steps: int = 60) -> float:
    """Usage after the latents moved ten times their spread."""
    trained = [parameter for parameter in vq.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0) if trained else None
    for step in range(steps):
        z = torch.randn(64, 2, generator=torch.Generator().manual_seed(step)) + 10 * step / steps
        loss = vq(z.requires_grad_()).loss
        loss.backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    cloud = torch.randn(4000, 2, generator=torch.Generator().manual_seed(999)) + 10
    return vq.eval()(cloud).indices.unique().numel() / vq.codebook_size


def test_keeps_every_code_alive_under_drift_where_vanilla_loses_them() -> None:
    assert drift(NSVQ(dim=2, codebook_size=16)) == 1.0
    assert drift(NSVQ(dim=2, codebook_size=16, update="online", rate=0.5, bandwidth=1.0)) == 1.0
    assert drift(VQ(dim=2, codebook_size=16, kmeans_init=True)) < 0.5


def test_large_batches_are_estimated_from_a_random_part(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    for elements in (2**25, 2**13):
        monkeypatch.setattr("driftvq.quantizers.ns_vq.ONLINE_KERNEL_ELEMENTS", elements)
        torch.manual_seed(0)
        vq = NSVQ(dim=3, codebook_size=32, update="online", kmeans_init=False, bandwidth=2.0)
        torch.nn.init.normal_(vq.codes)
        before = vq.codes.detach().clone()
        vq(torch.randn(4096, 3, generator=torch.Generator().manual_seed(1)))
        moved.append(vq.codes.detach() - before)
    assert not torch.equal(*moved)
    assert torch.nn.functional.cosine_similarity(*(m.flatten() for m in moved), dim=0) > 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "gausian"}, "kernel must be one of"),
        ({"update": "sgd"}, "update must be one of"),
        ({"bandwidth": 0}, "bandwidth must be positive, got 0"),
        ({"rate": 2}, "rate must lie between 0 and 1, got 2"),
        ({"update": "online", "kernel": "rank"}, "relative=True needs a kernel of distances"),
        ({"update": "online", "orthogonal_weight": 0.1}, "orthogonal_weight needs a codebook trained by gradient"),
    ],
)
def test_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NSVQ(dim=3, codebook_size=10, **options)
