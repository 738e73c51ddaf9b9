import copy
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn, get_swa_avg_fn

from driftvq import EMAVQ, NSVQ, VQ, Quantizer, ResidualVQ, TransVQ, TransVQPaper, make_quantizer
from driftvq.functional import kmeans
from driftvq.quantizers.codebook import CodebookQuantizer

STARTED = [VQ, EMAVQ, NSVQ, TransVQ]
STILL = [VQ, TransVQPaper]
"""Those whose stored codes no training step moves by itself."""
every_started = pytest.mark.parametrize("cls", STARTED, ids=lambda cls: cls.__name__)


def batch(seed: int, n: int = 40) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


def make(cls: type[CodebookQuantizer], **options: object) -> CodebookQuantizer:
    torch.manual_seed(0)
    return cls(dim=3, codebook_size=47, kmeans_init=True, **options)


@every_started
def test_gathers_as_many_batches_as_the_codebook_needs(cls: type[CodebookQuantizer]) -> None:
    vq = make(cls)
    for seed in range(4):
        x = batch(seed)
        output = vq(x)
        assert not vq.start.done
        assert torch.allclose(output.quantized, x, atol=1e-6)
    vq.freeze_codebook = True
    vq(batch(9))
    assert len(vq.start.pending) == 160
    vq.freeze_codebook = False
    vq(batch(4))
    assert vq.start.done
    assert len(vq.start.pending) == 0


@pytest.mark.parametrize("cls", [*STARTED, TransVQPaper], ids=lambda cls: cls.__name__)
def test_the_codebook_is_then_the_k_means_of_what_was_gathered(cls: type[CodebookQuantizer]) -> None:
    vq = make(cls)
    for seed in range(5):
        quantized, indices, _ = vq(batch(seed))
    last = batch(4)[torch.arange(28) * 40 // 28]  # from all over the batch
    latest = torch.cat([batch(2), batch(3), last])[-94:]  # two per code
    expected = kmeans(latest, 47, 10, generator=torch.Generator().manual_seed(0)).codebook
    if cls in STILL:
        assert torch.equal(vq.book.stored, expected)
    if cls is not TransVQPaper:
        torch.testing.assert_close(quantized, expected[indices])


@every_started
def test_never_fires_in_evaluation_or_when_frozen(cls: type[CodebookQuantizer]) -> None:
    vq = make(cls)
    before = vq.codebook.detach().clone()
    vq.eval()
    vq(batch(0, 500))
    vq.train()
    vq.freeze_codebook = True
    vq(batch(0, 500))
    assert not vq.start.done
    assert len(vq.start.pending) == 0
    assert torch.equal(vq.codebook, before)


@every_started
def test_survives_save_and_load_in_the_middle(cls: type[CodebookQuantizer]) -> None:
    vq = make(cls)
    vq(batch(0))
    twin = make(cls)
    twin.load_state_dict(vq.state_dict())
    assert torch.equal(twin.start.pending, vq.start.pending)
    for seed in (1, 2, 3, 4):
        vq(batch(seed))
        twin(batch(seed))
    assert torch.equal(vq.codebook, twin.codebook)
    late = make(cls)
    late.load_state_dict(vq.state_dict())
    assert late.start.done
    before = late.codebook.detach().clone()
    late.freeze_codebook = True
    late(batch(5, 500))
    assert torch.equal(late.codebook, before)


def test_loading_a_started_state_into_a_fresh_module_stops_the_start() -> None:
    vq = make(VQ)
    vq(batch(0, 200))
    twin = make(VQ)
    twin.load_state_dict(vq.state_dict())
    twin(batch(1, 200))
    assert torch.equal(twin.codebook, vq.codebook)


def test_masked_latents_are_not_gathered() -> None:
    vq = make(VQ)
    x = batch(0).reshape(2, 20, 3)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, :7] = True
    vq(x, mask)
    assert torch.equal(vq.start.pending, x[0, :7])


def test_does_not_touch_the_global_random_state() -> None:
    vq = make(VQ)
    torch.manual_seed(3)
    vq(batch(0, 200))
    assert torch.rand(()).item() == torch.rand((), generator=torch.Generator().manual_seed(3)).item()


@pytest.mark.parametrize("use_buffers", [True, False])
@pytest.mark.parametrize("how", ["mean", "exponential", "latest"])
@pytest.mark.parametrize("name", ["ns_vq", "residual_vq"])
def test_a_moving_average_of_the_model_follows_the_start(name: str, how: str, use_buffers: bool) -> None:
    vq = make_quantizer(name, dim=3, codebook_size=50)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), vq)
    average = {"exponential": {"multi_avg_fn": get_ema_multi_avg_fn(0.5)}, "latest": {"avg_fn": lambda _, new, __: new}}
    averaged = AveragedModel(model, use_buffers=use_buffers, **average.get(how, {}))
    shapes = [buffer.shape for buffer in vq.buffers()]
    for seed in range(8):
        vq(batch(seed))
        averaged.update_parameters(model)
        assert [buffer.shape for buffer in vq.buffers()] == shapes
    twin = averaged.module[1].train()
    assert twin.codebook.isfinite().all()
    if how == "latest" or not use_buffers:
        assert torch.equal(twin.codebook, vq.codebook)
    before = twin.codebook.clone()
    twin(batch(9))
    assert (twin.codebook - before).square().mean() < 0.3 * before.square().mean()  # it is not started again


@pytest.mark.parametrize(
    "options", [{"use_buffers": True}, {"avg_fn": get_ema_avg_fn(0.5)}, {"avg_fn": get_swa_avg_fn()}]
)
def test_a_quantizer_alone_is_averaged_from_before_its_start(options: dict[str, Any]) -> None:
    """Not by torch's default, which cannot average a module without parameters, whichever it is."""
    vq = make(NSVQ)
    averaged = AveragedModel(vq, **options)
    for seed in range(12):
        vq(batch(seed))
        averaged.update_parameters(vq)
    assert averaged.module.codebook.isfinite().all()
    if "avg_fn" in options:
        assert torch.equal(averaged.module.codebook, vq.codebook)
    assert not averaged.module.start.waits()


def test_a_copy_gathers_by_itself() -> None:
    vq = make(NSVQ)
    vq(batch(0))
    twin = copy.deepcopy(vq)
    vq(batch(1))
    assert (len(vq.start.pending), len(twin.start.pending)) == (80, 40)
    for seed in (1, 2):
        twin(batch(seed))
    vq(batch(2))
    assert torch.equal(twin.codebook, vq.codebook)


def test_what_was_gathered_for_other_codes_is_refused() -> None:
    vq = make(VQ)
    vq(batch(0))
    for wrong in (torch.zeros(40, 2), torch.zeros(189, 3), torch.zeros(3)):
        with pytest.raises(RuntimeError, match=r"start.pending must be at most 188 latents of 3, got"):
            make(VQ).load_state_dict({**vq.state_dict(), "start.pending": wrong})


COMPILED: dict[str, tuple[type[Quantizer], dict[str, object]]] = {
    "ns_vq": (NSVQ, {}),
    "trans_vq mlp": (TransVQ, {"transform": "mlp", "width": 8}),
    "ema_vq": (EMAVQ, {"kmeans_init": True}),
    "residual_vq": (ResidualVQ, {"num_quantizers": 2}),
    "residual_vq shared": (ResidualVQ, {"num_quantizers": 2, "shared_codebook": True}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_into_one_graph_from_the_first_step(name: str) -> None:
    cls, options = COMPILED[name]
    torch.manual_seed(0)
    vq = cls(dim=3, codebook_size=50, **options)
    twin, graphs = copy.deepcopy(vq), []
    torch._dynamo.reset()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(vq, fullgraph=True, backend=backend)
    for step in range(40):
        x, y = (batch(step).requires_grad_() for _ in range(2))
        for module, z in ((compiled, x), (twin, y)):
            quantized, _, loss = module(z)
            ((quantized - 1).square().mean() + loss).backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-8)
        for (key, mine), other in zip(vq.state_dict().items(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5, msg=f"{key} at step {step}")
    assert len(graphs) == 2  # while it gathers, and then


def test_a_compiled_start_finds_out_that_a_codebook_was_loaded_in_place() -> None:
    vq, twin = make(NSVQ), make(NSVQ)
    for seed in range(5):
        vq(batch(seed))
    for name, tensor in vq.state_dict().items():
        twin.get_buffer(name).copy_(tensor)
    torch._dynamo.reset()
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    before = vq.codebook.clone()
    assert torch.equal(compiled(batch(5)).indices, vq(batch(5)).indices)
    assert torch.equal(twin.codebook, before)  # it was not started again
    compiled(batch(6))
    assert not torch.equal(twin.codebook, before)


def test_a_start_that_is_over_keeps_no_codes_of_its_own() -> None:
    vq = make(VQ)
    for seed in range(6):
        vq(batch(seed))
    assert vq.start.latest is None
    vq = make(VQ)
    vq(batch(0))
    assert copy.deepcopy(vq).start.latest is None
