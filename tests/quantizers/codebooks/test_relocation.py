from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import driftvq
from driftvq.quantizers.codebooks.parts import Batch, Now, Seen
from driftvq.quantizers.codebooks.relocation import LOST_SHARE, MOST_RELOCATED, RELOCATED_SHARE, Relocation


def batch(latents: Tensor, away: Tensor, memory: Tensor, codes: Tensor, step: int = 0, interval: int = 1) -> Batch:
    """Latents at these places, so far away from codes whose places do not matter; of the last code they are none."""
    anchors = torch.cat([codes, latents - away])
    winners = torch.arange(len(codes), len(anchors))
    counted = (away != 0).any(dim=1)
    seen = Seen(anchors, winners, away, counted, torch.zeros(len(anchors), latents.shape[1] + 1), Now(interval))
    full = torch.cat([memory, torch.full((len(latents),), float(memory.mean()))])
    zero = torch.zeros(len(anchors), latents.shape[1])
    return Batch(seen, torch.tensor(step), counted.sum().float(), away.square().sum()[None], zero[:, 0], zero, full)


def places(part: Relocation, step: Batch, codes: Tensor) -> Tensor:
    """Where the codes are afterwards."""
    moved = part(None, step)
    return codes if moved is None else codes + moved[: len(codes)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_lost_codes_take_over_latents_and_get_half_of_the_mean_memory() -> None:
    codes, latents, memory = draw(10, 3), draw(64, 3, seed=1), torch.full((10,), 4.0)
    memory[2], memory[7], part = 0.001, 0.002, Relocation()
    step = batch(latents, latents, memory, codes)
    fair = float(step.memory.mean())
    lost = memory.numpy() < LOST_SHARE * fair
    after = places(part, step, codes).numpy()
    found = [int(np.abs(latents.numpy() - row).max(axis=1).argmin()) for row in after[lost]]
    np.testing.assert_allclose(after[lost], latents.numpy()[found], atol=1e-6)
    assert len(set(found)) == lost.sum() > 0
    np.testing.assert_array_equal(after[~lost], codes.numpy()[~lost])
    np.testing.assert_allclose(step.memory.numpy()[:10][lost], fair / 2, rtol=1e-6)
    assert (step.memory.numpy()[:10][~lost] == 4).all()
    assert part.readings() == {"relocated": lost.sum()}


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02, 0.03, 0.06, 0.09, 0.11, 0.5])
def test_a_lost_code_goes_where_that_pays(share: float) -> None:
    """By the rule itself: one code at ``share`` of the mean memory, one latent at each squared distance."""
    errors, codes = np.array([0.2, 0.5, 1.0, 1.5, 2.5, 8.0]), torch.zeros(1, 1)
    away, latents = torch.tensor(errors).sqrt().float()[:, None], torch.arange(1.0, 7.0)[:, None]
    moved = set[int]()
    for number in range(400):
        step = batch(latents, away, torch.ones(1), codes, number)
        step.memory[0] = share * (len(latents) / (len(latents) + 1 - share))  # so that it is a share of the mean
        after = float(places(Relocation(), step, codes)[0, 0])
        moved |= {round(after) - 1} if after else set()
    pays = (share < LOST_SHARE) & (share < LOST_SHARE * errors / (3 * errors.mean()))  # 1 + 2/d = 3
    assert moved == set(np.flatnonzero(pays).tolist())


@pytest.mark.parametrize(("latents", "interval"), [(3, 1), (40, 1), (400, 1), (40, 2), (40, 8)])
def test_a_share_of_the_latents_take_over_a_code_at_most(latents: int, interval: int) -> None:
    memory, part, before = torch.full((100,), 100.0), Relocation(), draw(100, 2)
    memory[50:] = 0
    spread = torch.nn.functional.normalize(draw(latents, 2, seed=2), dim=1)  # equally far: none is due twice
    after = places(part, batch(draw(latents, 2, seed=1), spread, memory, before, interval=interval), before)
    expected = min(50, max(1, int(min(interval * RELOCATED_SHARE, MOST_RELOCATED) * latents)))
    assert int((after != before).any(dim=1).sum()) == part.relocated.item() == expected


def test_between_two_rounds_nothing_is_relocated() -> None:
    memory, codes = torch.tensor([1.0, 0.0]), draw(2, 3)
    step = batch(draw(16, 3), draw(16, 3, seed=1), memory, codes)

    def at(due: Tensor | bool) -> Batch:
        return replace(step, seen=step.seen._replace(now=Now(due=due)))

    assert Relocation()(None, at(False)) is None
    assert torch.equal(places(Relocation(), at(torch.tensor(False)), codes), codes)
    assert not torch.equal(places(Relocation(), at(torch.tensor(True)), codes), codes)


def test_latents_are_drawn_by_their_squared_distance() -> None:
    away = torch.tensor([[1.0, 0], [0, 2], [2, 2], [0, 0], [3, 0], [0, 0]])
    latents, codes, drawn = torch.arange(12.0).reshape(6, 2), torch.full((5, 2), -1.0), np.zeros(6)
    for step in range(2000):
        memory = torch.tensor([1.0, 1, 0, 1, 1])
        drawn[round(float(places(Relocation(), batch(latents, away, memory, codes, step), codes)[2, 0])) // 2] += 1
    assert drawn[3] == drawn[5] == 0
    np.testing.assert_allclose(drawn[[0, 1, 2, 4]] / 2000, np.array([1, 4, 8, 9]) / 22, atol=0.01)


def test_where_every_latent_is_served_no_code_moves() -> None:
    memory, codes = torch.tensor([1.0, 0.0]), draw(2, 3)
    step = batch(draw(16, 3), torch.zeros(16, 3), memory, codes)
    assert torch.equal(places(Relocation(), step, codes), codes)
    assert step.memory[:2].tolist() == [1, 0]


def test_a_new_code_that_no_latent_selects_is_soon_lost() -> None:
    """Its memory fades from 1 to 0 while the mean goes from 1 to 3: ``e^(-x/3) = s (3 - 2 e^(-x/3))``.

    Lost at s = 0.1, x = 3 ln 4, it goes at s = 0.025, x = 3 ln 14, at the latest, even to a well served latent.
    """
    codes, latents = 64, 8
    vq = driftvq.NSVQ(4, codes, kmeans_init=False, parts=["winners", "relocation"]).train()
    vq.set_codebook_(torch.cat([draw(codes - 1, 4), torch.full((1, 4), 100.0)]))
    for step in range(100):
        vq(draw(1, latents, 4, seed=step))
        if vq.codebook[-1].abs().max() < 50:
            break
    assert 3 * np.log(4) <= (step + 1) * latents / codes < 3 * np.log(14) + 1
