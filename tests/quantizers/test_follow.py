import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from driftvq import NSVQ, Quantizer, ResidualVQ, TransVQ, make_quantizer
from driftvq.functional import nearest


def cloud(n: int = 3000, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    chosen = torch.randint(20, (n,), generator=generator)
    return centres[chosen] + 0.5 * torch.randn(n, 4, generator=generator)


def cell_means(vq: Quantizer, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    quantized, indices, _ = vq.eval()(x)
    sums = torch.zeros_like(vq.codebook).index_add_(0, indices, x)
    counts = torch.bincount(indices, minlength=vq.codebook_size)
    assert (counts > 0).all()
    return sums / counts[:, None], (quantized - x).square().sum()


def test_reaches_a_k_means_fixed_point_of_a_frozen_encoder() -> None:
    x = cloud()
    vq = NSVQ(dim=4, codebook_size=32)
    for _ in range(300):
        vq(x)
    means, inertia = cell_means(vq, x)
    assert (means - vq.codebook).norm(dim=1).max() < 1e-3
    assert inertia < 1.02 * KMeans(32, n_init=10, random_state=0).fit(x.numpy()).inertia_


def test_comes_close_to_it_from_small_batches() -> None:
    x, generator = cloud(), torch.Generator().manual_seed(1)
    vq = NSVQ(dim=4, codebook_size=32)
    for _ in range(1500):
        vq(x[torch.randint(len(x), (128,), generator=generator)])
    means, inertia = cell_means(vq, x)
    assert (means - vq.codebook).norm(dim=1).mean() < 0.05
    assert inertia < 1.02 * KMeans(32, n_init=10, random_state=0).fit(x.numpy()).inertia_


@pytest.mark.parametrize("name", ["ns_vq", "trans_vq"])
@pytest.mark.parametrize(("dim", "rank", "least"), [(3, 3, 128), (64, 3, 128), (64, 64, 122)])
@pytest.mark.parametrize("motion", ["shift", "expand", "rotate"])
def test_codes_are_in_use_throughout_a_drift(motion: str, dim: int, rank: int, least: int, name: str) -> None:
    """All of them where the latents have three directions; a cloud with 64 equal ones may lose a few for a while."""
    generator = torch.Generator().manual_seed(0)
    skew = torch.randn(dim, dim, generator=generator) * 0.05 * dim**-0.5
    turn = torch.linalg.matrix_exp(skew - skew.t())
    directions = torch.linalg.qr(torch.randn(dim, rank, generator=generator))[0]
    x = torch.randn(8192, rank, generator=generator) @ directions.t()
    vq = make_quantizer(name, dim=dim, codebook_size=128)
    scale, offset, rotation = 1.0, 0.0, torch.eye(dim)
    used = []
    for step in range(150):
        scale = scale * 1.01 if motion == "expand" else scale
        offset = offset + 0.02 if motion == "shift" else offset
        rotation = rotation @ turn if motion == "rotate" else rotation
        moved = (x * scale + offset) @ rotation
        vq.train()(moved[torch.randint(len(x), (256,), generator=generator)])
        if step % 5 == 4:
            used.append(vq.eval()(moved).indices.unique().numel())
    assert min(used) >= least


@pytest.mark.parametrize("make", [NSVQ, TransVQ])
@pytest.mark.parametrize("dim", [3, 16, 64])
def test_the_pull_on_a_latent_does_not_depend_on_the_dimension(dim: int, make: type[NSVQ | TransVQ]) -> None:
    x, vq = torch.randn(100, dim, requires_grad=True), make(dim, 16).eval()
    vq(x).loss.backward()
    expected = 2 * 0.25 / 64 / 100 * (x - vq.codebook[nearest(x, vq.codebook)])
    assert torch.allclose(x.grad, expected, rtol=1e-4)
    assert make(512, 16, dim).commitment_weight == vq.commitment_weight


def test_commitment_is_the_papers_from_64_dimensions_on_when_asked_for_and_where_codes_do_not_follow() -> None:
    ours = [NSVQ(64, 16), TransVQ(256, 16), NSVQ(3, 16, commitment_weight=0.25), TransVQ(3, 16, commitment_weight=0.25)]
    others = [NSVQ.paper(3, 16), NSVQ(3, 16, update="online"), TransVQ.paper(3, 16), TransVQ(3, 16, follow=False)]
    assert [vq.commitment_weight for vq in (*ours, *others)] == [0.25] * 8


def test_lost_codes_go_to_latents_that_are_badly_served() -> None:
    vq = NSVQ(dim=2, codebook_size=4, kmeans_init=False)
    vq.codes.copy_(torch.tensor([[0.0, 0.0], [900.0, 0.0], [900.0, 1.0], [900.0, 2.0]]))
    x = torch.cat([0.1 * torch.randn(900, 2), 0.1 * torch.randn(100, 2) + 10])
    for _ in range(3):
        vq(x)
    indices = vq.eval()(x).indices
    assert indices.unique().numel() == 4
    assert indices[900:].unique().numel() < 4
    assert vq.follower.relocated >= 3


def test_codes_left_behind_by_a_jump_are_back_after_a_dozen_latents_per_code() -> None:
    generator = torch.Generator().manual_seed(0)
    vq = NSVQ(dim=3, codebook_size=1024)
    for step in range(50):
        x = torch.randn(256, 3, generator=generator)
        vq(x if step < 2 else x + 100 * x[:, :1].sign())
    x = torch.randn(50_000, 3, generator=generator)
    assert vq.eval()(x + 100 * x[:, :1].sign()).indices.unique().numel() >= 0.95 * 1024


def test_a_drift_half_as_long_as_the_distance_from_the_codes_is_followed_in_full() -> None:
    x, vq = cloud(), NSVQ(dim=4, codebook_size=32)
    vq(x)
    distance = vq.scale.sqrt()
    for step in range(1, 40):
        vq(x + step * distance / 4)
    assert vq.follower.gain[0] > 0.9


def test_a_settled_encoder_leaves_the_drift_off() -> None:
    x, generator = cloud(), torch.Generator().manual_seed(1)
    vq = NSVQ(dim=4, codebook_size=32)
    for _ in range(800):
        vq(x[torch.randint(len(x), (256,), generator=generator)])
    settled = vq.follower.gain.clone()
    for step in range(60):
        vq(x[torch.randint(len(x), (256,), generator=generator)] + 0.1 * (step + 1))
    assert settled.max() < 0.02
    assert vq.follower.gain[0] > 0.2
    assert vq.eval()(x + 6).indices.unique().numel() >= 0.95 * 32


def test_images_that_differ_are_no_drift() -> None:
    """Latents of an image share its colours, so that batches of few images differ by far more than latents do."""
    generator = torch.Generator().manual_seed(0)
    vq = NSVQ(dim=4, codebook_size=32)
    for _ in range(400):
        images = torch.randn(4, 1, 4, generator=generator)
        vq(images + 0.5 * torch.randn(4, 64, 4, generator=generator))
    assert vq.follower.gain.max() < 0.05


def test_readings_are_those_of_the_follower_averaged_over_levels() -> None:
    vq = ResidualVQ(dim=4, codebook_size=32, num_quantizers=2)
    for scale in (1.0, 1.2, 1.4, 1.7):
        vq(scale * cloud())
    gains = torch.stack([level.follower.gain for level in vq.quantizers])
    readings = vq.readings()
    assert gains[:, 1].max() > 0
    assert [readings["shift_followed"], readings["linear_followed"]] == pytest.approx(gains.mean(dim=0).tolist())
    assert readings["relocated"] == sum(level.follower.relocated.item() for level in vq.quantizers) / 2


def test_memory_is_part_of_the_state() -> None:
    vq = NSVQ(dim=4, codebook_size=32)
    for seed in range(5):
        vq(cloud(100, seed))
    twin = NSVQ(dim=4, codebook_size=32)
    twin.load_state_dict(vq.state_dict())
    for seed in range(5, 8):
        vq(cloud(100, seed))
        twin(cloud(100, seed))
    np.testing.assert_array_equal(vq.codes, twin.codes)
    np.testing.assert_array_equal(vq.follower.mass, twin.follower.mass)
