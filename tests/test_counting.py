"""benchmarks/counting.py: known sequences of operators have known costs."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from driftvq import QUANTIZERS
from driftvq.functional import METRICS, blocks, nearest
from driftvq.quantizers import finite

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import counting

    return counting


@torch.library.custom_op("driftvq_tests::add_first", mutates_args=())
def add_first(x: Tensor) -> Tensor:
    return x * 2 + x.flatten()[0].item()


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (lambda x: x + 1, ["add"]),
        (lambda x: x.view(-1).unsqueeze(0).expand(3, -1).t(), []),
        (lambda x: torch.empty_like(x).detach(), []),
        (lambda x: (x @ x.t()).relu_().sum(), ["mm", "relu_", "sum"]),
        (lambda x: torch.promote_types(x.dtype, torch.float64), []),
        (lambda x: x.requires_grad_().square().sum().backward(), ["pow", "sum", "ones_like", "pow", "mul", "mul"]),
    ],
)
def test_operators_are_those_that_a_device_runs(counting, step, names):
    x = torch.zeros(4, 5)
    cost = counting.count(lambda: step(x))
    assert [launch.name for launch in cost.launches] == names
    assert cost.host_reads == 0


@pytest.mark.parametrize(
    ("step", "reads"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: float(x.sum()) + int(x[0]), 2),
        (lambda x: bool(x.any()), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x.numpy(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.unique(), 1),
        (lambda x: torch.equal(x, x), 1),
        (lambda x: x.long().bincount(), 1),
        (lambda x: torch.ones(5).repeat_interleave(x.long()), 1),
        (lambda x: torch.ones(5).repeat_interleave(x.long(), output_size=5), 0),
        (lambda x: x[torch.tensor([0, 1])], 0),
        (lambda x: torch.where(x > 0, x, 0), 0),
        (lambda x: add_first(x), 1),
        (lambda x: [add_first(x) for _ in range(3)], 3),
    ],
)
def test_host_reads(counting, step, reads):
    x = torch.ones(5)
    assert counting.count(lambda: step(x)).host_reads == reads
    assert x.tolist() == [1.0] * 5  # counted no longer
    assert "tolist" not in vars(torch.Tensor)


def test_a_copy_to_the_host_is_a_read_and_one_to_the_device_is_not(counting):
    with FakeTensorMode():
        there, here = torch.empty(3, device="cuda"), torch.empty(3)
        for copy in (lambda: there.cpu(), lambda: there.to("cpu"), lambda: here.copy_(there)):
            assert counting.count(copy).host_reads == 1
        assert counting.count(lambda: there.clone()).host_reads == 0
    assert counting.count(lambda: torch.ones(3).to("meta")).host_reads == 0


def test_the_body_of_a_custom_operator_is_counted(counting):
    x = torch.ones(2, 3)
    cost = counting.count(lambda: add_first(x))
    assert [launch.name for launch in cost.launches] == ["mul", "_local_scalar_dense", "add"]


def test_bytes_and_flops(counting):
    x, w = torch.ones(4, 5), torch.ones(5, 6)
    product, total = counting.count(lambda: (x @ w).sum()).launches
    assert (product.bytes, product.flops) == (4 * (20 + 30 + 24), 2 * 4 * 5 * 6)
    assert (total.bytes, total.flops) == (4 * (24 + 1), 24)
    expanded = counting.count(lambda: torch.ones(1).expand(1000) + x.new_ones(1000)).launches[-1]
    assert expanded.bytes == 4 * (1 + 1000 + 1000)
    assert counting.count(lambda: torch.mm(x, w, out=torch.empty(4, 6))).bytes == product.bytes


def test_the_estimate_takes_the_slowest_of_launch_memory_and_arithmetic(counting):
    launches = [counting.Launch("launch", 1, 1), counting.Launch("memory", 1000, 1), counting.Launch("flops", 1, 5000)]
    assert counting.Cost(launches).seconds(2.0, 100.0, 1000.0) == 2 + 10 + 5


@pytest.fixture
def launches(counting: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import launches

    monkeypatch.setenv("DRIFTVQ_SEARCH", "")
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(blocks, "HOST", blocks.HOST)
    monkeypatch.setattr(finite, "AT_ONCE", finite.AT_ONCE)
    launches.as_on_a_device()
    return launches


@pytest.mark.parametrize("metric", METRICS)
def test_the_search_reads_nothing_back(counting, launches, metric):
    x, codebook = torch.randn(100, 8), torch.randn(50, 8)
    codebook[3] = codebook[7]
    cost = counting.count(lambda: nearest(x, codebook, metric, way="blocks"))
    assert cost.host_reads == 0
    assert cost.operators <= 12


def test_every_quantizer_has_a_row(launches):
    names = [row.name for row in launches.rows()]
    assert set(names) > set(QUANTIZERS)
    assert len(names) == len(set(names))


def test_a_row_is_the_mean_of_several_steps(launches):
    row = next(row for row in launches.rows() if row.name == "vq")
    shape = (64, 16, 8)
    cost, cells = launches.cost_of(row.make, shape, training=True), launches._line(row, shape, training=True)
    assert cells[:3] == ["vq", f"{cost.operators / launches.STEPS:.0f}", f"{cost.host_reads / launches.STEPS:.3g}"]
    products = [launch for launch in cost.launches if launch.name == "addmm"]
    assert [launch.flops for launch in products] == [2 * 64 * 16 * 8] * launches.STEPS


def test_the_formula_of_the_blocked_search_is_what_is_counted(counting, launches):
    n, k, d = 500, 300, 16
    x, codebook = torch.randn(n, d), torch.randn(k, d)
    cost = counting.count(lambda: nearest(x, codebook))
    of_latents = cost.launches[-3:]  # the others prepare the codes
    assert [launch.name for launch in of_latents] == ["sub", "addmm", "argmax"]
    assert sum(launch.bytes for launch in of_latents) == launches.search_bytes((n, k, d))["blocked"] + 4 * (d + k)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import wire

    return wire


def test_two_processes_send_at_most_two_messages_a_step_of_known_size(wire):
    dim, codes = 4, 24
    found = wire.run_both(["--shape", "16", str(codes), str(dim)])
    features, counted, drawn = dim + 1, codes * (dim + 1), codes * (dim + 1)
    ranks = 2
    assert found["EMAVQ"] == [1, 4 * (counted + ranks)]
    assert found["EMAVQ, replacement"] == [2, 4 * (counted + ranks + drawn)]
    with_errors = drawn + codes  # of the latents drawn, by which a relocation pays
    assert found["NSVQ"] == [2, 4 * (counted + features * (features + dim) + ranks + with_errors)]
    assert all(messages <= wire.MOST_MESSAGES for messages, _ in found.values())


def test_the_estimate_of_an_exchange_counts_hops_and_bytes(wire):
    assert wire.exchange_seconds(2, 0, 8, 1e9) == pytest.approx(2 * 6 * wire.HOP_SECONDS)
    assert wire.exchange_seconds(0, 1e9, 2, 1e9) == pytest.approx(1)
