"""Whatever is done to a quantizer, in whatever order, it stays whole: a state machine for every registered one."""

import copy
import io

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from driftvq import QUANTIZERS, Quantizer, make_quantizer
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.composite import CompositeQuantizer
from tests.conftest import Trials

DIM, SIZE, MOST = 4, 16, 40
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def waits(vq: Quantizer) -> bool:
    return any(part.start.waits() for part in vq.modules() if isinstance(part, CodebookQuantizer))


class Life(RuleBasedStateMachine):
    """Train with an optimizer, evaluate, save and load, copy, grow, freeze and move between dtypes."""

    name = "vq"
    trials = Trials(None)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vq: Quantizer = make_quantizer(self.name, dim=DIM, codebook_size=SIZE)

    def latents(self, count: int, seed: int) -> torch.Tensor:
        dtype = next((value.dtype for value in self.vq.parameters()), torch.float32)
        return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)).to(dtype)

    @rule(count=st.sampled_from([0, 1, 40]), seed=st.integers(0, 99))
    def train(self, count: int, seed: int) -> None:
        steps, x = int(self.vq.step), self.latents(count, seed).requires_grad_()
        quantized, indices, loss = self.vq.train()(x)
        assert quantized.shape == (count, DIM)
        assert len(indices) == count
        assert loss.isfinite()
        assert int(self.vq.step) == steps + 1
        (loss.to(quantized.dtype) + (quantized - 1).square().sum()).backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        trained = [parameter for parameter in self.vq.parameters() if parameter.grad is not None]
        if trained:
            torch.optim.SGD(trained, 1e-3).step()
        self.vq.zero_grad()

    @rule(seed=st.integers(0, 99))
    def evaluate(self, seed: int) -> None:
        before = copy.deepcopy(self.vq.state_dict())
        x = self.latents(9, seed)
        first, second = self.vq.eval()(x), self.vq(x)
        assert torch.equal(first.quantized, second.quantized)
        assert torch.equal(self.vq.indices_to_codes(first.indices).to(x.dtype), first.quantized)
        assert all(torch.equal(value, before[name]) for name, value in self.vq.state_dict().items())

    @rule()
    def save_and_load(self) -> None:
        file = io.BytesIO()
        torch.save(self.vq.state_dict(), file)
        file.seek(0)
        loaded = copy.deepcopy(self.vq)
        for value in loaded.state_dict().values():
            value.zero_()
        loaded.load_state_dict(torch.load(file, weights_only=True))
        self.same_as(loaded)

    @rule()
    def duplicate(self) -> None:
        self.same_as(copy.deepcopy(self.vq))

    def same_as(self, other: Quantizer) -> None:
        """Another is equal in all it has and all it does; it takes the quantizer's place."""
        x, mode = self.latents(9, 5), self.vq.training
        assert torch.equal(other.eval()(x).quantized, self.vq.eval()(x).quantized)
        state = self.vq.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())
        self.vq = other.train(mode)

    @precondition(lambda self: isinstance(self.vq, CodebookQuantizer | CompositeQuantizer) and not waits(self.vq))
    @rule(more=st.integers(1, 9))
    def grow(self, more: int) -> None:
        assert isinstance(self.vq, CodebookQuantizer | CompositeQuantizer)
        size, old = self.vq.codebook_size, self.vq.codebook.detach().clone()
        wanted = min(MOST, size + more)
        try:
            self.vq.grow_(wanted)
        except ValueError:  # where new codes would change the others
            wanted = size
        assert self.vq.codebook_size == wanted
        assert self.vq.codebook.shape[-2:] == (wanted, old.shape[-1])
        assert torch.equal(self.vq.codebook[..., :size, :], old)

    @precondition(lambda self: isinstance(self.vq, CodebookQuantizer | CompositeQuantizer))
    @rule(frozen=st.booleans())
    def freeze(self, frozen: bool) -> None:
        assert isinstance(self.vq, CodebookQuantizer | CompositeQuantizer)
        self.vq.freeze_codebook = frozen
        if frozen:
            before = self.vq.codebook.detach().clone()
            self.vq.train()(self.latents(40, 3))
            assert torch.equal(self.vq.codebook, before)

    @rule(dtype=st.sampled_from(DTYPES))
    def move(self, dtype: torch.dtype) -> None:
        self.vq.to(dtype)
        assert all(parameter.dtype == dtype for parameter in self.vq.parameters())
        assert self.vq.codebook.dtype == dtype or not isinstance(self.vq, CodebookQuantizer | CompositeQuantizer)

    @invariant()
    def is_finite(self) -> None:
        self.trials.tried += 1
        assert all(value.isfinite().all() for value in self.vq.state_dict().values() if value.is_floating_point())
        self.trials.held += 1


def live(name: str, examples: int, steps: int, trials: Trials) -> None:
    machine = type(f"Life of {name}", (Life,), {"name": name, "trials": trials})
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=checks,
            derandomize=True,
            phases=[Phase.generate],  # to make a failing life shorter takes minutes
            database=None,
        ),
    )


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_short_life(name: str) -> None:
    live(name, examples=3, steps=12, trials=Trials(None))


@pytest.mark.slow
@pytest.mark.trial("steps in the life of a quantizer")
@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_long_life(name: str, trials: Trials) -> None:
    live(name, examples=60, steps=40, trials=trials)
