import pytest

from driftvq.metrics import METRICS as MEASURED
from driftvq.records.metric_table import METRICS, is_better, metric, plain_label, with_unit
from driftvq.training.config import MONITORS


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [("psnr", 30.0, 20.0), ("loss", 0.1, 0.2), ("usage", 0.9, 0.8), ("rfid", 3.0, 4.0), ("usage@300", 0.9, 0.8)],
)
def test_the_direction_of_a_metric(name: str, better: float, worse: float) -> None:
    assert is_better(name, better, worse)
    assert not is_better(name, worse, better)
    assert not is_better(name, better, better)


def test_everything_that_is_measured_or_chosen_by_is_in_the_table() -> None:
    assert set(MEASURED) <= METRICS.keys()
    assert {metric(name).better for name in (*MEASURED, *MONITORS)} == {"lower", "higher"}


def test_a_metric_on_the_way_is_the_metric_at_a_step() -> None:
    assert metric("usage@300") == METRICS["usage"]._replace(
        label="Usage at step 300", meaning=f"{METRICS['usage'].meaning}, after 300 steps"
    )
    assert metric("unheard@300").better is None


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("psnr", 25.123, "25.12 dB"),
        ("usage", 0.5, "50.0%"),
        ("kid", 0.01234, "0.0123"),
        ("bits_per_image", 640, "640 bits"),
    ],
)
def test_a_value_by_itself_has_its_unit(name: str, value: float, text: str) -> None:
    assert with_unit(name, value) == text


def test_a_sentence_does_not_shout() -> None:
    assert [plain_label(name) for name in ("usage", "psnr", "kid")] == ["usage", "PSNR", "KID"]
