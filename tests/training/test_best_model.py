import math

import pytest

from driftvq.training.best_model import is_better
from driftvq.training.config import MONITORS


@pytest.mark.parametrize(
    ("value", "best", "direction", "expected"),
    [
        (20.0, None, "max", True),
        (20.0, 19.0, "max", True),
        (20.0, 20.0, "max", False),
        (19.0, 20.0, "max", False),
        (0.1, 0.2, "min", True),
        (0.2, 0.1, "min", False),
        (math.nan, None, "max", False),
        (math.inf, 20.0, "max", False),
        (None, None, "max", False),
    ],
)
def test_which_value_is_better(value, best, direction, expected):
    assert is_better(value, best, direction) is expected


def test_a_higher_psnr_and_a_lower_loss_are_better():
    assert (MONITORS["psnr"], MONITORS["ssim"], MONITORS["loss"]) == ("max", "max", "min")
