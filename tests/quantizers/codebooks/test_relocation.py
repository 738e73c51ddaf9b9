import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from driftvq.quantizers.codebooks.parts import Batch, Seen
from driftvq.quantizers.codebooks.relocation import LOST_SHARE, RELOCATED_SHARE, Relocation


def batch(latents: Tensor, away: Tensor, memory: Tensor, weight: Tensor | None = None, step: int = 0) -> Batch:
    count, codes = len(latents), len(memory)
    weight = torch.ones(count) if weight is None else weight
    one, nobody = torch.tensor(1.0), torch.zeros(count, dtype=torch.int64)
    seen = Seen(torch.zeros(codes, latents.shape[1]), nobody, away, weight, spread=one)
    return Batch(
        seen,
        latents,
        torch.tensor(step),
        total=one,
        reach=one,
        counts=torch.zeros(codes),
        sums=torch.zeros(codes, latents.shape[1]),
        memory=memory,
    )


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_lost_codes_take_over_latents_and_get_half_of_the_mean_memory() -> None:
    codes, latents, memory = draw(10, 3), draw(64, 3, seed=1), torch.full((10,), 4.0)
    fair = (8 * 4 + 0.1 + 0.19) / 10
    memory[2], memory[7], part = 0.1, 0.19, Relocation()
    assert LOST_SHARE * fair > 0.1
    lost = memory.numpy() < LOST_SHARE * fair
    after = part(codes, batch(latents, latents, memory)).numpy()
    places = [int(np.flatnonzero((latents.numpy() == row).all(axis=1))[0]) for row in after[lost]]
    assert len(set(places)) == lost.sum() > 0
    np.testing.assert_array_equal(after[~lost], codes.numpy()[~lost])
    np.testing.assert_allclose(memory.numpy()[lost], fair / 2, rtol=1e-6)
    assert (memory.numpy()[~lost] >= 0.19).all()
    assert part.readings() == {"relocated": lost.sum()}


@pytest.mark.parametrize("latents", [3, 40, 400])
def test_an_eighth_of_the_latents_take_over_a_code_at_most(latents: int) -> None:
    memory, part = torch.full((100,), 100.0), Relocation()
    memory[50:] = 0
    before = draw(100, 2)
    after = part(before, batch(draw(latents, 2, seed=1), draw(latents, 2, seed=2), memory))
    expected = min(50, max(1, int(RELOCATED_SHARE * latents)))
    assert int((after != before).any(dim=1).sum()) == part.relocated.item() == expected


def test_latents_are_drawn_by_their_squared_distance() -> None:
    away = torch.tensor([[1.0, 0], [0, 2], [2, 2], [0, 0], [3, 0], [5, 5]])
    weight = torch.tensor([1.0, 1, 1, 1, 1, 0])
    latents, codes, drawn = torch.arange(12.0).reshape(6, 2), torch.full((5, 2), -1.0), np.zeros(6)
    for step in range(2000):
        memory = torch.tensor([1.0, 1, 0, 1, 1])
        drawn[int(Relocation()(codes, batch(latents, away, memory, weight, step))[2, 0]) // 2] += 1
    share = np.array([1, 4, 8, 9]) / 22
    assert drawn[3] == drawn[5] == 0
    assert chisquare(drawn[[0, 1, 2, 4]], 2000 * share).pvalue > 1e-3


def test_where_every_latent_is_served_no_code_moves() -> None:
    memory, codes = torch.tensor([1.0, 0.0]), draw(2, 3)
    assert torch.equal(Relocation()(codes, batch(draw(16, 3), torch.zeros(16, 3), memory)), codes)
    assert memory.tolist() == [1, 0]
