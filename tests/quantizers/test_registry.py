import pytest

from driftvq import QUANTIZERS, NSVQPaper, make_quantizer


def test_makes_by_name() -> None:
    vq = make_quantizer("ns_vq_paper", dim=4, codebook_size=8, bandwidth=0.5)
    assert type(vq) is NSVQPaper
    assert vq.book.bandwidth == 0.5


def test_every_name_makes_its_class() -> None:
    made = {name: type(make_quantizer(name, dim=4, codebook_size=16)) for name in QUANTIZERS}
    assert made == QUANTIZERS
    assert len(set(made.values())) == len(QUANTIZERS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nsvq", "unknown quantizer 'nsvq'; known, nearest first: ns_vq, "),
        ("ns_vq_papr", "unknown quantizer 'ns_vq_papr'; known, nearest first: ns_vq_paper, "),
    ],
)
def test_unknown_names_are_answered_with_the_known_ones(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_quantizer(name, dim=4, codebook_size=8)
