import pytest

from driftvq import QUANTIZERS
from driftvq.models import VQVAE, ModelConfig
from driftvq.models.build import build_quantizer, option_names
from tests.quantizers.cases import VARIANTS


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_quantizer_builds_from_the_default_config(name):
    quantizer = build_quantizer(ModelConfig(quantizer=name))
    assert type(quantizer) is QUANTIZERS[name]
    assert quantizer.channel_first
    assert quantizer.dim == 64
    assert quantizer.codebook_size == 1024


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_option_that_is_tested_elsewhere_is_known(name):
    for options in VARIANTS.get(name, []):
        options = {key: value for key, value in options.items() if key != "dim"}
        config = ModelConfig(quantizer=name, code_dim=12, codebook_size=64, quantizer_options=options)
        assert set(options) <= set(option_names(name, options))
        assert type(build_quantizer(config)) is QUANTIZERS[name]


def test_options_reach_the_quantizer():
    options = {"commitment_weight": 0.7, "kmeans_init": False}
    quantizer = build_quantizer(ModelConfig(quantizer_options=options))
    assert quantizer.commitment_weight == 0.7
    assert quantizer.start.done


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"network": "papr"}, "unknown network 'papr'; known, nearest first: paper, "),
        ({"quantizer": "nsvq"}, "unknown quantizer 'nsvq'; known, nearest first: ns_vq, "),
        ({"quantizer": "non"}, "unknown quantizer 'non'; known, nearest first: none, "),
        ({"quantizer": "ns_vq_papr"}, "unknown quantizer 'ns_vq_papr'; known, nearest first: ns_vq_paper, "),
        (
            {"quantizer_options": {"comitment_weight": 1}},
            "unknown key in quantizer_options for 'ns_vq' 'comitment_weight'; known, nearest first: commitment_weight,",
        ),
        ({"quantizer": "lfq", "codebook_size": 100}, "codebook_size 100, .*power of two, got 100"),
        ({"quantizer": "fsq", "codebook_size": 1022}, "codebook_size 1022, .* product of numbers from 3 to 8"),
        ({"quantizer": "grouped_vq", "code_dim": 3}, "code_dim 3, .*groups must divide the dimension 3, got 2"),
        ({"quantizer_options": {"commitment_weight": "a"}}, "quantizer_options {'commitment_weight': 'a'}: "),
        (
            {"quantizer": "residual_vq", "quantizer_options": {"quantizer": "vqq"}},
            r"unknown quantizer_options\['quantizer'\] 'vqq'; known, nearest first: vq, ",
        ),
        (
            {"quantizer": "residual_vq", "quantizer_options": {"quantizer": "vq", "parts": ["drift"]}},
            "unknown key in quantizer_options for 'residual_vq' 'parts'",
        ),
    ],
)
def test_errors_name_the_field(values, message):
    with pytest.raises(ValueError, match=message):
        VQVAE(ModelConfig(**values))
