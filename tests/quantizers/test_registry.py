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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vq", {"accept_image_fmap": True}, "argument of VQ 'accept_image_fmap'; known, nearest first: channel_first"),
        ("diveq", {"decay": 0.9}, "argument of DiVeQ 'decay'"),
        ("residual_vq", {"quantize_dropout": 1}, "ResidualVQ over 'ns_vq' 'quantize_dropout'.*: quantizer_dropout"),
        ("multi_scale_vq", {"quantize_dropout": 1}, "MultiScaleVQ over .* nearest first: quantizer_dropout"),
        ("grouped_vq", {"quantizer": "residual_vq", "beta": 1}, "GroupedVQ over 'residual_vq' 'beta'.*: commitment_w"),
    ],
)
def test_an_unknown_argument_names_the_class_and_the_nearest_of_its_own(name, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        make_quantizer(name, dim=8, codebook_size=16, **options)


def test_levels_in_the_place_of_the_dimension() -> None:
    with pytest.raises(ValueError, match=r"dim must be a whole number of at least 1, got \[8, 5, 5, 5\]"):
        QUANTIZERS["fsq"]([8, 5, 5, 5])
