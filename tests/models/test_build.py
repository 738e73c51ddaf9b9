import pytest
import torch

from driftvq import QUANTIZERS
from driftvq.models import VQVAE, ModelConfig
from driftvq.models.build import build_quantizer, option_names
from tests.limits import ends_within
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


def test_a_quantizer_may_hold_its_own_kind():
    options = {"quantizer": "residual_vq", "num_quantizers": 2}
    quantizer = build_quantizer(ModelConfig(quantizer="residual_vq", quantizer_options=options))
    assert [type(inner) for inner in quantizer.quantizers] == [QUANTIZERS["residual_vq"]] * 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("residual_vq", {"num_quantizers": 10**8}, "'num_quantizers'.* must be at most 1,024, got 100000000"),
        ("grouped_vq", {"groups": 2**26}, "'groups'.* must be at most 1,024, got 67108864"),
        ("trans_vq", {"width": 10**12}, "'width'.* must be at most 65,536, got 1000000000000"),
        ("vq", {"codebook_dim": 10**15}, "'codebook_dim'.* must be at most 65,536"),
        ("trans_vq", {"mlp_ratio": 1e300}, "cannot be made with .*1e.300"),
        ("trans_vq", {"mlp_ratio": -1}, "cannot be made with .*-1"),
        (
            "residual_vq",
            {"num_quantizers": 64, "quantizer": "grouped_vq", "groups": 64},
            "num_quantizers × groups must be at most 1,024, got 4,096",
        ),
    ],
)
def test_what_would_never_be_built_is_refused_at_once(name, options, message):
    config = ModelConfig(quantizer=name, quantizer_options=options)
    with ends_within(20), torch.device("meta"), pytest.raises(ValueError, match=message) as caught:
        VQVAE(config)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


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
