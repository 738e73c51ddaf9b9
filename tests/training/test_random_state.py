import io
import random

import numpy as np
import torch

from driftvq.training.random_state import random_state, seed_all, set_random_state


def draw():
    legacy = np.random.mtrand._rand
    return random.random(), random.gauss(0, 1), legacy.rand(), legacy.randn(), torch.rand(()).item()


def test_draws_go_on_where_they_were_saved():
    seed_all(3)
    draw()
    file = io.BytesIO()
    torch.save(random_state(), file)
    expected = [draw() for _ in range(3)]
    seed_all(4)
    file.seek(0)
    set_random_state(torch.load(file, weights_only=True))
    assert [draw() for _ in range(3)] == expected


def test_a_seed_fixes_all_generators():
    seed_all(5)
    first = draw()
    seed_all(5)
    assert draw() == first
    seed_all(6)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
