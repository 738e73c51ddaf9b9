"""Loaders of other libraries write tensors in place, without telling the module."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from driftvq import QUANTIZERS, Quantizer, make_quantizer


def trained(name: str) -> Quantizer:
    torch.manual_seed(0)
    vq = make_quantizer(name, dim=12, codebook_size=64)
    for seed in range(6):
        vq(torch.randn(4, 40, 12, generator=torch.Generator().manual_seed(seed)))
    return vq


def write(vq: Quantizer, twin: Quantizer) -> None:
    tensors = dict(twin.named_parameters()) | dict(twin.named_buffers())
    with torch.no_grad():
        for key, tensor in vq.state_dict().items():
            tensors[key].copy_(tensor)


@pytest.mark.parametrize("name", ["ns_vq", "trans_vq", "trans_vq_paper", "ns_vq_paper", "residual_vq", "grouped_vq"])
def test_a_codebook_written_in_place_is_not_started_again(name: str) -> None:
    vq, twin = trained(name), make_quantizer(name, dim=12, codebook_size=64)
    write(vq, twin)
    x = torch.randn(4, 40, 12, generator=torch.Generator().manual_seed(9))
    assert torch.equal(twin(x).indices, vq(x).indices)
    assert torch.equal(twin.codebook, vq.codebook)


@pytest.mark.parametrize("compiled", [False, True])
def test_codes_written_in_place_are_searched_by_beams_as_before(compiled: bool) -> None:
    vq, twin = (make_quantizer("residual_vq", dim=12, codebook_size=16, beam_size=4) for _ in range(2))
    for seed in range(6):
        vq(torch.randn(4, 40, 12, generator=torch.Generator().manual_seed(seed)))
    write(vq, twin)
    vq.eval(), twin.eval()
    call = torch.compile(twin, fullgraph=True, backend="eager") if compiled else twin
    x = torch.randn(4, 40, 12, generator=torch.Generator().manual_seed(9))
    assert torch.equal(call(x).indices, vq(x).indices)
    vq.beam_size = 1
    assert not torch.equal(call(x).indices, vq(x).indices)


def test_codes_written_in_place_can_grow() -> None:
    vq, twin = trained("ns_vq"), make_quantizer("ns_vq", dim=12, codebook_size=64)
    write(vq, twin)
    twin.grow_(80)
    assert torch.equal(twin.codebook[:64], vq.codebook)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_module_built_without_memory_is_whole_after_loading(name: str) -> None:
    vq = trained(name)
    with torch.device("meta"):
        twin = make_quantizer(name, dim=12, codebook_size=64)
    twin.to_empty(device="cpu")
    for tensor in (*twin.parameters(), *twin.buffers()):
        tensor.detach().fill_(1)
    twin.load_state_dict(vq.state_dict())
    x = torch.randn(4, 40, 12, generator=torch.Generator().manual_seed(9))
    for _ in range(2):
        torch.manual_seed(3)
        indices = twin(x).indices
        torch.manual_seed(3)
        assert torch.equal(indices, vq(x).indices)
    assert torch.equal(twin.eval().indices_to_codes(indices), vq.eval().indices_to_codes(indices))


@pytest.mark.parametrize("include_buffers", [True, False])
@pytest.mark.parametrize("name", ["ns_vq", "trans_vq", "fsq", "residual_vq"])
def test_accelerate_loads_into_a_module_without_memory(name: str, include_buffers: bool, tmp_path: Path) -> None:
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch

    vq = trained(name)
    save_file(vq.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    with init_empty_weights(include_buffers=include_buffers):
        twin = make_quantizer(name, dim=12, codebook_size=64)
    twin = load_checkpoint_and_dispatch(twin, str(tmp_path / "model.safetensors"), device_map={"": "cpu"}).train()
    x = torch.randn(4, 40, 12, generator=torch.Generator().manual_seed(9))
    assert torch.equal(twin(x).indices, vq(x).indices)
    torch.testing.assert_close(
        twin.codebook, vq.codebook
    )  # the loader's memory is not aligned: products round otherwise


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.bfloat16, 1.0), (torch.float64, 1.0), *((torch.float16, scale) for scale in (1e-3, 1.0, 300.0))],
)
@pytest.mark.parametrize("name", QUANTIZERS)
def test_modules_of_another_precision_train(name: str, dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    vq = make_quantizer(name, dim=12, codebook_size=64).to(dtype)
    for seed in range(8):
        x = scale * torch.randn(4, 40, 12, generator=torch.Generator().manual_seed(seed))
        x = x.to(dtype).requires_grad_()
        quantized, _, loss = vq(x)
        (quantized.float().square().mean() + loss.float()).backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in vq.state_dict().values() if tensor.is_floating_point())
    assert quantized.dtype == dtype


def test_statistics_stay_in_float32() -> None:
    vq = make_quantizer("residual_vq", dim=12, codebook_size=64).half()
    kept, codes = vq.part(0).book.memory, vq.part(0).book.codes
    assert (kept.dtype, codes.dtype) == (torch.float32, torch.float16)
    vq.load_state_dict(
        {name: t.half() if t.is_floating_point() else t for name, t in vq.state_dict().items()}, assign=True
    )
    assert vq.part(0).book.memory.dtype == torch.float16
    assert vq.train().part(0).book.memory.dtype == torch.float32
    assert vq.double().part(0).book.memory.dtype == torch.float64
