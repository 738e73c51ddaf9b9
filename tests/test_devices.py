"""Everything that touches tensors runs on a device other than the CPU, to the same numbers.

No such device is at hand: see :mod:`tests.pretended_device`.
"""

import contextlib
import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.pool import Pool
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import backend_registration

from driftvq import VQVAE, ModelConfig, make_quantizer
from driftvq.drift_meter import DriftMeter
from driftvq.functional import kmeans, perplexity, usage
from driftvq.metrics import CodeCounter, polynomial_mmd, psnr, ssim
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.training.objective import Adversary
from driftvq.training.validation import ValidationSums, WeightAverage
from tests.quantizers.cases import CASES, DEFAULTS, Case

COMPOSITES = ("residual_vq", "grouped_vq", "multi_scale_vq")
LEFT_OUT = [
    *(Case(name, {"quantizer": quantizer}) for name in COMPOSITES for quantizer in ("vq", "ema_vq")),
    # Codes of CVQ that start together move to one latent; which of them is nearest is then a matter of rounding.
    *(
        Case(case.name, {"kmeans_init": case.name == "cvq"} if isinstance(case.make(), CodebookQuantizer) else {})
        for case in DEFAULTS
        if case.name not in COMPOSITES
    ),
]
TIMEOUT_SECONDS = 120
pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="needs a PyTorch in which a device can be written in Python",
)


class Place(NamedTuple):
    """Where a check runs: how tensors and modules get there."""

    tensor: Callable[[Tensor, bool], Tensor]
    move_: Callable[[nn.Module], None]
    device: torch.device


def quantize(place: Place, case: Case) -> list[Any]:
    vq = case.make()
    place.move_(vq)
    optimizer = optimizer_of(vq)
    mask = torch.arange(32).expand(4, 32) > 2
    for step in range(3):
        x = place.tensor(case.latents(seed=20 + step), True)  # none of them midway between two codes
        quantized, _, loss = vq(x, place.tensor(mask, False))
        ((quantized - 1).square().mean() + loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    vq.eval()
    out = vq(x)
    assert out.indices.device == place.device
    return [out.indices, out.quantized, vq.indices_to_codes(out.indices), vq.recent_usage(), *vq.readings().values()]


def leave_out(place: Place, case: Case) -> list[Any]:
    """NaN latents on the device, masked ones on the CPU: the same state, and the device's next call says so."""
    vq = case.make()
    place.move_(vq)
    mask = torch.arange(32).expand(4, 32) > 2
    for step in range(4):
        x = case.latents(seed=step)
        if place.device.type == "cpu":
            vq(x, mask)
            continue
        vq(place.tensor(torch.where(mask[..., None], x, torch.nan), True))
        with pytest.raises(ValueError, match="those of an earlier call were not; they moved no code"):
            vq(place.tensor(x, True))
    return [*vq.buffers(), *vq.parameters()]


def grow(place: Place, name: str) -> list[Any]:
    vq = make_quantizer(name, dim=4, codebook_size=16)
    place.move_(vq)
    optimizer = optimizer_of(vq)
    for step in range(4):
        x = place.tensor(torch.randn(100, 4), True)
        quantized, _, loss = vq(x)
        (quantized.square().mean() + loss).backward()
        optimizer.step()
        if step == 1:
            vq.grow_(30)
    return [vq.codebook]


def train(place: Place) -> list[Any]:
    """A tokenizer's training, with all that can be measured on the way."""
    model = VQVAE(ModelConfig(quantizer="trans_vq", codebook_size=32, network="small"))
    adversary = Adversary(0.1, 0, 1e-3, (0.5, 0.9))
    place.move_(model)
    place.move_(adversary.discriminator)
    adversary.optimizer = optimizer_of(adversary.discriminator)
    probe = place.tensor(torch.rand(2, 3, 16, 16) * 2 - 1, False)
    meter, average = DriftMeter(model.encoder, model.quantizer, probe), WeightAverage(model, 0.9)
    sums, optimizer = ValidationSums(model.quantizer, place.device), optimizer_of(model)
    results: list[Any] = []
    for _ in range(3):
        pixels = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8)
        images = place.tensor(pixels / 127.5 - 1, False)
        out = model(images)
        loss = (out.images - images).square().mean()
        loss = loss + adversary.generator_loss(out.images, loss, last_weight(model.decoder)) + out.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        adversary.learn_(images, out.images.detach())
        average.update_parameters(model)
        sums.update(place.tensor(pixels, False), out.images.detach(), out.indices, loss.detach())
        results += [loss, *meter.measure().to_dict().values()]
    model.eval()
    indices = model.encode(images)
    results.append(average.module.reconstruct(images))
    return [*results, indices, model.decode(indices), *sums.result().values()]


def measure(place: Place) -> list[Any]:
    real, fake = (place.tensor(torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8), False) for _ in range(2))
    counter = CodeCounter(32)
    counter.update(place.tensor(torch.randint(32, (4, 8, 8)), False))
    features = [place.tensor(torch.randn(20, 8), False) for _ in range(2)]
    counts = place.tensor(torch.tensor([3, 0, 5]), False)
    found = kmeans(place.tensor(torch.randn(300, 4), False), 16, generator=torch.Generator().manual_seed(0))
    return [
        *(psnr(real, fake, 255), ssim(real, fake, 255), counter.usage(), counter.perplexity()),
        *(usage(counts), perplexity(counts), polynomial_mmd(*features)),
        *found,
    ]


CHECKS: dict[str, Callable[[Place], list[Any]]] = {
    **{str(case): lambda place, case=case: quantize(place, case) for case in CASES},
    **{f"leave out {case}": lambda place, case=case: leave_out(place, case) for case in LEFT_OUT},
    **{f"grow {name}": lambda place, name=name: grow(place, name) for name in ("ns_vq", "trans_vq", "ema_vq")},
    "train": train,
    "measure": measure,
}
REFUSED: dict[str, Callable[[Place], list[Any]]] = {
    "has no float64": lambda place: [place.tensor(torch.ones(3), False).double()],
    "expected all tensors to be on one device": lambda place: [place.tensor(torch.ones(3), False) + torch.ones(3)],
    "is not implemented": lambda place: [torch.linalg.eigvalsh(place.tensor(torch.eye(3), False))],
}


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return torch.optim.SGD(parameters or [nn.Parameter(torch.zeros(1))], 0.01, foreach=False)


def last_weight(module: nn.Module) -> Tensor:
    return [parameter for parameter in module.parameters() if parameter.ndim > 1][-1]


def complaint(check: Callable[[Place], list[Any]]) -> str:
    """What goes wrong on the device; empty if nothing."""
    from tests.pretended_device import DEVICE, PretendedDevice, move_, to_device

    near = Place(lambda x, grad: x.clone().requires_grad_(grad), lambda module: None, torch.device("cpu"))
    far = Place(to_device, move_, DEVICE)
    found = []
    for place, mode in ((near, contextlib.nullcontext()), (far, PretendedDevice())):
        torch.manual_seed(0)
        try:
            with mode:
                found.append([value.detach().cpu() if isinstance(value, Tensor) else value for value in check(place)])
        except Exception:
            return traceback.format_exc()
    try:
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=3e-5, equal_nan=True, check_dtype=False)
    except AssertionError as error:
        return str(error)
    return ""


def complaint_about(name: str) -> str:
    return complaint((CHECKS | REFUSED)[name])


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Pool]:
    """A process in which the device is known."""
    with multiprocessing.get_context("spawn").Pool(1, torch.set_num_threads, (1,)) as pool:
        yield pool


@pytest.mark.parametrize("name", CHECKS)
def test_runs_on_another_device(elsewhere: Pool, name: str) -> None:
    assert elsewhere.apply_async(complaint_about, (name,)).get(TIMEOUT_SECONDS) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_the_pretended_device_refuses_what_a_real_one_would(elsewhere: Pool, name: str) -> None:
    assert name in elsewhere.apply_async(complaint_about, (name,)).get(TIMEOUT_SECONDS)
