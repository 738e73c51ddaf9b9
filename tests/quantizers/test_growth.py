"""Growth keeps what indices mean, lowers the distortion and loses no code."""

from typing import Any

import pytest
import torch
from torch import Tensor

from driftvq import FSQ, NSVQ, VQ, ResidualVQ, make_quantizer
from driftvq.functional import nearest
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.composite import CompositeQuantizer
from driftvq.quantizers.quantizer import Quantizer

GROWING: list[tuple[str, dict[str, Any]]] = [
    ("vq", {"kmeans_init": True}),
    ("ema_vq", {"kmeans_init": True}),
    ("ns_vq", {}),
    ("ns_vq_paper", {}),
    ("ns_vq_delta_e", {}),
    ("factorized_vq", {"codebook_dim": 3, "kmeans_init": True}),
    ("sim_vq", {"kmeans_init": True}),
    ("trans_vq", {}),
    ("trans_vq", {"transform": "mlp"}),
    ("trans_vq_paper", {"transform": "mlp"}),
    ("trans_vq_paper", {"transform": "mlp", "residual": True}),
]


def latents(step: int, count: int = 1024) -> Tensor:
    """Clusters of very different weight."""
    generator = torch.Generator().manual_seed(step)
    centres = torch.randn(40, 4, generator=torch.Generator().manual_seed(99)) * 3
    weights = torch.linspace(1, 20, 40)
    chosen = torch.multinomial(weights, count, replacement=True, generator=generator)
    return centres[chosen] + 0.3 * torch.randn(count, 4, generator=generator)


def trained(name: str, options: dict[str, Any], size: int = 32) -> tuple[CodebookQuantizer, torch.optim.Adam | None]:
    torch.manual_seed(0)
    vq = make_quantizer(name, dim=4, codebook_size=size, **options)
    assert isinstance(vq, CodebookQuantizer)
    optimizer = optimizer_of(vq)
    train(vq, optimizer, range(20))
    return vq, optimizer


def optimizer_of(vq: Quantizer) -> torch.optim.Adam | None:
    parameters = [p for p in vq.parameters() if p.requires_grad]
    return torch.optim.Adam(parameters, 1e-3) if parameters else None


def train(vq: Quantizer, optimizer: torch.optim.Adam | None, steps: range) -> None:
    for step in steps:
        loss = vq(latents(step)).loss
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def distortion(vq: CodebookQuantizer) -> float:
    vq.eval()
    z = vq.to_code_space(vq.project_in(latents(1000)))
    error = (z - vq.codebook[nearest(z, vq.codebook)]).square().sum(dim=1).mean().item()
    vq.train()
    return error


@pytest.mark.parametrize(("name", "options"), GROWING)
def test_existing_codes_stay_and_distortion_falls(name: str, options: dict[str, Any]) -> None:
    vq, optimizer = trained(name, options)
    before_kd, error = vq.codebook.detach().clone(), distortion(vq)
    vq.grow_(77, optimizer)
    assert vq.codebook_size == len(vq.codebook) == len(vq.code_age) == 77
    assert torch.allclose(vq.codebook[:32], before_kd, atol=1e-5)
    assert torch.pdist(vq.codebook).min() > 0
    assert distortion(vq) < error
    train(vq, optimizer, range(20, 25))
    assert vq.codebook.isfinite().all()


@pytest.mark.parametrize("name", ["ns_vq", "trans_vq"])
def test_no_code_is_lost_by_growing(name: str) -> None:
    vq, optimizer = trained(name, {})
    error = distortion(vq)
    vq.grow_(128, optimizer)
    train(vq, optimizer, range(20, 200))
    vq.eval()
    used = vq(torch.cat([latents(step) for step in range(300, 330)])).indices.unique()
    assert len(used) == 128
    assert distortion(vq) < 0.6 * error


def test_an_optimizer_that_knows_rows_and_columns_goes_on() -> None:
    vq, x = VQ(8, 16), torch.randn(64, 8)
    optimizer = torch.optim.Adafactor(vq.parameters(), lr=0.1)
    for size in (16, 24):
        vq.grow_(size, optimizer)
        before = vq.codebook.detach().clone()
        optimizer.zero_grad()
        vq(x).loss.backward()
        optimizer.step()
        assert not torch.equal(vq.codebook, before)
    assert optimizer.state[vq.book.codes]["row_var"].shape == (24, 1)


def test_what_the_optimizer_knows_grows_with_the_codes() -> None:
    vq, optimizer = trained("vq", {"kmeans_init": True})
    assert optimizer is not None
    moments = optimizer.state[vq.book.codes]["exp_avg_sq"].clone()
    vq.grow_(40, optimizer)
    grown = optimizer.state[vq.book.codes]["exp_avg_sq"]
    assert grown.shape == vq.book.codes.shape
    assert torch.equal(grown[:32], moments)
    assert all((moments == row).all(dim=1).any() for row in grown[32:])


def test_the_busiest_cells_are_split() -> None:
    vq, _ = trained("ns_vq", {})
    vq.book.memory[7] = 1e6
    old = vq.codebook[7].clone()
    vq.grow_(33)
    neighbour = (vq.codebook[:32] - old).norm(dim=1).topk(2, largest=False).values[1]
    assert 0.05 * neighbour <= vq.codebook[32].dist(old) <= 0.1001 * neighbour
    assert vq.book.memory[7] == vq.book.memory[32] == 5e5


def test_a_grown_state_loads_into_a_quantizer_of_the_new_size() -> None:
    vq, _ = trained("ns_vq", {})
    vq.grow_(50)
    fresh = make_quantizer("ns_vq", dim=4, codebook_size=50)
    fresh.load_state_dict(vq.state_dict())
    assert torch.equal(fresh.codebook, vq.codebook)


def test_refuses_to_shrink_or_to_grow_too_early() -> None:
    vq, _ = trained("ns_vq", {})
    with pytest.raises(ValueError, match="new_size must be at least the present 32 codes, got 8"):
        vq.grow_(8)
    with pytest.raises(ValueError, match="once its k-means start is finished"):
        make_quantizer("ns_vq", dim=4, codebook_size=32).grow_(64)


@pytest.mark.parametrize("name", ["trans_vq_paper", "trans_vq_published"])
def test_codes_that_depend_on_each_other_cannot_grow_and_say_so(name: str) -> None:
    """Attention mixes the codes: with more of them, every index would mean another code."""
    vq, _ = trained(name, {})
    before = vq.codebook.detach().clone()
    with pytest.raises(ValueError, match="grow"):
        vq.grow_(40)
    assert torch.equal(vq.codebook, before)


def test_codes_that_are_split_again_and_again_stay_apart() -> None:
    """Two codes have one direction only in which to split, in every round."""
    vq = NSVQ(dim=3, codebook_size=2, kmeans_init=False)
    vq.grow_(64)
    assert torch.pdist(vq.codebook).min() > 0


@pytest.mark.parametrize(("name", "options"), GROWING)
def test_growing_while_the_graph_of_the_last_step_is_alive(name: str, options: dict[str, Any]) -> None:
    """A training loop holds on to its last loss until the next one is there."""
    vq, optimizer = trained(name, options)
    z = latents(20).requires_grad_()
    last = vq(z)
    last.loss.backward()
    vq.grow_(40, optimizer)
    now = vq(z)
    (now.quantized.square().mean() + now.loss).backward()
    for parameter in vq.parameters():
        assert parameter.grad is None or parameter.grad.shape == parameter.shape
    assert last.loss.isfinite()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["residual_vq", "grouped_vq"])
@pytest.mark.parametrize("inner", ["ns_vq", "vq"])
def test_all_codebooks_of_a_composite_grow(name: str, inner: str, shared: bool) -> None:
    torch.manual_seed(0)
    parts = {"num_quantizers": 3} if name == "residual_vq" else {"groups": 2}
    options = {"dim": 4, "quantizer": inner, "shared_codebook": shared, "kmeans_init": True, **parts}
    vq = make_quantizer(name, codebook_size=32, **options)
    assert isinstance(vq, CompositeQuantizer)
    optimizer = optimizer_of(vq)
    train(vq, optimizer, range(20))
    vq.eval()
    indices = vq(latents(50)).indices
    before_nd, before = vq.indices_to_codes(indices), (latents(51) - vq(latents(51)).quantized).square().mean()
    vq.train().grow_(60, optimizer)
    assert vq.codebook_size == 60
    assert vq.codebook.shape[1] == 60
    vq.eval()
    assert torch.equal(vq.indices_to_codes(indices), before_nd)
    assert (latents(51) - vq(latents(51)).quantized).square().mean() < before
    train(vq.train(), optimizer, range(20, 40))
    fresh = make_quantizer(name, codebook_size=60, **options)
    fresh.load_state_dict(vq.state_dict())
    assert torch.equal(fresh.eval()(latents(52)).indices, vq.eval()(latents(52)).indices)


def test_a_composite_grows_in_all_of_its_parts_or_in_none() -> None:
    vq = ResidualVQ(dim=4, codebook_size=32, num_quantizers=2)
    vq.part(0).start.finish_()
    with pytest.raises(ValueError, match="once its k-means start is finished"):
        vq.grow_(64)
    assert vq.part(0).codebook_size == vq.codebook_size == 32
    with pytest.raises(ValueError, match="FSQ has no codebook that could grow"):
        ResidualVQ(dim=4, codebook_size=32, quantizer=lambda dim, codebook_size: FSQ(dim, levels=[4, 8])).grow_(64)
