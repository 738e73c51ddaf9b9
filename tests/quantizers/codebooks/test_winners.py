import numpy as np
import torch

from driftvq import NSVQ
from driftvq.quantizers.codebooks.base import Lesson
from driftvq.quantizers.codebooks.following import MIN_MEMORY
from driftvq.quantizers.codebooks.parts import Batch
from driftvq.quantizers.codebooks.winners import Winners
from tests.quantizers.codebooks.following import NumpyWinners


def test_several_steps_match_the_equation() -> None:
    generator = torch.Generator().manual_seed(0)
    vq = NSVQ(dim=3, codebook_size=20, parts=["winners"], kmeans_init=False).double()
    codes = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    vq.set_codebook_(codes)
    expected = NumpyWinners(codes.numpy())
    for step in range(40):
        z = torch.randn(60, 3, generator=generator, dtype=torch.float64) + 0.02 * step
        vq(z)
        expected.step_(z.numpy())
        np.testing.assert_allclose(vq.codebook, expected.codes, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(vq.book.memory, expected.memory, rtol=1e-9)
    assert 0.05 * vq.book.seen > MIN_MEMORY * 20  # the memory has begun to grow
    assert (vq.codebook - codes).abs().max() > 0.3


def test_codes_that_were_not_selected_stay() -> None:
    vq = NSVQ(dim=1, codebook_size=3, parts=["winners"], kmeans_init=False)
    vq.set_codebook_(torch.tensor([[0.0], [10.0], [20.0]]))
    vq(torch.tensor([[9.0], [9.0]]))
    assert vq.codebook[[0, 2], 0].tolist() == [0, 20]
    assert 9 < vq.codebook[1, 0] < 10


def test_sums_agree_with_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    z, win = torch.randn(50, 3, generator=generator), torch.randint(7, (50,), generator=generator)
    valid = torch.rand(50, generator=generator) < 0.7
    lesson = Lesson(z, win, valid, torch.tensor(0))
    counts, sums, latents = lesson.sums(9)
    onehot = np.eye(9)[win] * valid.numpy()[:, None]
    np.testing.assert_allclose(counts, onehot.sum(axis=0))
    np.testing.assert_allclose(lesson.counts(9), onehot.sum(axis=0))
    assert latents.tolist() == [valid.sum().item()]
    np.testing.assert_allclose(sums, onehot.T @ z.numpy(), atol=1e-5)


def test_after_another_part_codes_make_up_for_what_is_left() -> None:
    generator = torch.Generator().manual_seed(0)
    sums, moved = torch.randn(2, 5, 3, generator=generator)
    counts, memory = torch.tensor([0.0, 1, 2, 3, 9]), torch.tensor([1.0, 2, 3, 4, 20])
    batch = Batch(None, torch.tensor(0), counts.sum(), torch.ones(1), counts, sums, memory)
    expected = moved + (sums - counts[:, None] * moved) / memory[:, None]
    np.testing.assert_allclose(Winners()(moved, batch), expected, rtol=1e-5)
    np.testing.assert_allclose(Winners()(None, batch), sums / memory[:, None])
