import pytest
import torch

from driftvq.quantizers.codebooks.clock import Clock
from driftvq.quantizers.codebooks.parts import Now


def times(clock: Clock, steps: int, latents: int, codes: int = 8) -> list[Now]:
    found = []
    for _ in range(steps):
        found.append(clock.now(torch.zeros(latents, 1), codes))
        clock.tick_(torch.zeros(latents, 1))
    return found


@pytest.mark.parametrize("latents", [1, 8, 15])
def test_with_few_latents_per_code_everything_is_due_in_every_step(latents: int) -> None:
    assert all(now.interval == 1 and now.due is now.glance is True for now in times(Clock(), 40, latents))


def test_with_two_latents_per_code_every_fourth_and_every_eighth_step_has_its_turn() -> None:
    found = times(Clock(), 36, latents=16)
    first = [0, 1]
    assert [step for step, now in enumerate(found) if now.look] == [*first, 2, 18, 34]
    assert [step for step, now in enumerate(found) if now.due] == [*first, *range(2, 36, 4)]
    assert [step for step, now in enumerate(found) if now.glance] == [*first, *range(2, 36, 8)]


def test_the_count_goes_on_from_its_buffer() -> None:
    clock, twin = Clock(), Clock()
    times(clock, 7, latents=16)
    twin.load_state_dict(clock.state_dict())
    assert times(twin, 20, latents=16) == times(clock, 20, latents=16)
