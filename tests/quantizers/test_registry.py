import pytest

from driftvq import NSVQ, make_quantizer


def test_makes_by_name_and_preset() -> None:
    vq = make_quantizer("ns_vq", preset="paper", dim=4, codebook_size=8)
    assert isinstance(vq, NSVQ)
    assert vq.kernel == "gaussian"
    assert make_quantizer("ns_vq", dim=4, codebook_size=8).kernel == "softmax"


@pytest.mark.parametrize(
    ("name", "preset", "message"),
    [
        ("nsvq", None, "unknown quantizer 'nsvq'; known, nearest first: ns_vq, "),
        ("ns_vq", "papr", "unknown preset of ns_vq 'papr'; known, nearest first: paper, "),
        ("vq", "paper", "unknown preset of vq 'paper'; known, nearest first: none"),
    ],
)
def test_unknown_names_are_answered_with_the_known_ones(name: str, preset: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_quantizer(name, preset=preset, dim=4, codebook_size=8)
