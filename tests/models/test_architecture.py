import pytest
import torch
from torch import nn

from driftvq import QUANTIZERS
from driftvq.models import NETWORKS, VQVAE, ModelConfig
from driftvq.models.architecture import build_quantizer, option_names
from driftvq.models.model_config import RESERVED
from tests.limits import ends_within
from tests.quantizers.cases import VARIANTS

RESIDUAL_LAYER = [("Conv2d", 256, 256, 3, 1, 1, 589_824), ("Conv2d", 256, 256, 1, 1, 0, 65_536)]

PAPER_ENCODER = [
    ("Conv2d", 3, 128, 4, 2, 1, 6_272),
    ("Conv2d", 128, 256, 4, 2, 1, 524_544),
    ("Conv2d", 256, 256, 3, 1, 1, 590_080),
    *RESIDUAL_LAYER * 6,
    ("Conv2d", 256, 64, 1, 1, 0, 16_448),
]
PAPER_DECODER = [
    ("Conv2d", 64, 256, 3, 1, 1, 147_712),
    *RESIDUAL_LAYER * 6,
    ("ConvTranspose2d", 256, 128, 4, 2, 1, 524_416),
    ("ConvTranspose2d", 128, 3, 4, 2, 1, 6_147),
]


def residual_block(channels, norm, conv):
    return [("GroupNorm", channels, norm), ("Conv2d", channels, channels, 3, 1, 1, conv)] * 2


BLOCK_128 = residual_block(128, 256, 147_584)
BLOCK_256 = residual_block(256, 512, 590_080)
BLOCK_512 = residual_block(512, 1_024, 2_359_808)

TAMING_ENCODER_REST = [
    *BLOCK_128 * 2,
    ("Conv2d", 128, 256, 4, 2, 1, 524_544),
    *BLOCK_256 * 2,
    ("Conv2d", 256, 512, 4, 2, 1, 2_097_664),
    *BLOCK_512 * 2,
    ("Conv2d", 512, 3, 3, 1, 1, 13_827),
    ("Conv2d", 3, 3, 1, 1, 0, 12),
]
TAMING_DECODER_REST = [
    ("Conv2d", 3, 3, 1, 1, 0, 12),
    ("Conv2d", 3, 512, 3, 1, 1, 14_336),
    *BLOCK_512 * 2,
    ("ConvTranspose2d", 512, 256, 4, 2, 1, 2_097_408),
    *BLOCK_256 * 2,
    ("ConvTranspose2d", 256, 128, 4, 2, 1, 524_416),
    *BLOCK_128 * 2,
]
LAST = ("Conv2d", 128, 3, 3, 1, 1, 3_459)


def quarter(rows):
    """The same layers at a quarter of the width, their parameters as counted by hand: in · out · k², plus the bias."""
    for kind, *shape, _ in rows:
        if kind == "GroupNorm":
            yield kind, shape[0] // 4, 2 * (shape[0] // 4)
        else:
            given, made = (width if width == 3 else width // 4 for width in shape[:2])
            yield kind, given, made, *shape[2:], given * made * shape[2] ** 2 + made


TABLES = {
    "paper": (64, PAPER_ENCODER, PAPER_DECODER),
    "taming": (
        3,
        [("Conv2d", 3, 128, 4, 2, 1, 6_272), *TAMING_ENCODER_REST],
        [*TAMING_DECODER_REST, ("ConvTranspose2d", 128, 128, 4, 2, 1, 262_272), LAST],
    ),
    "taming_f4": (
        3,
        [("Conv2d", 3, 128, 3, 1, 1, 3_584), *TAMING_ENCODER_REST],
        [*TAMING_DECODER_REST, LAST],
    ),
}
TABLES["taming_small"] = (3, *(list(quarter(rows)) for rows in TABLES["taming_f4"][1:]))
TOTALS = {
    "paper": (5_069_504, 4_610_435),
    "taming": (15_039_375, 15_298_959),
    "taming_f4": (15_036_687, 15_036_687),
    "taming_small": (945_231, 945_231),
}


def describe(module):
    count = sum(parameter.numel() for parameter in module.parameters())
    if isinstance(module, nn.GroupNorm):
        return "GroupNorm", module.num_channels, count
    kind = "ConvTranspose2d" if isinstance(module, nn.ConvTranspose2d) else "Conv2d"
    square = (module.kernel_size, module.stride, module.padding)
    assert all(a == b for a, b in square)
    return kind, module.in_channels, module.out_channels, *(side for side, _ in square), count


def layers(network):
    return [describe(m) for m in network.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.GroupNorm)]


@pytest.mark.parametrize("name", TABLES)
def test_layers_are_those_of_the_table(name):
    code_dim, encoder_rows, decoder_rows = TABLES[name]
    with torch.device("meta"):
        encoder, decoder, _ = NETWORKS[name](code_dim)
    assert [row[1:3] for row in layers(encoder)] == [row[1:3] for row in encoder_rows]
    assert layers(encoder) == encoder_rows
    assert layers(decoder) == decoder_rows


@pytest.mark.parametrize("name", TABLES)
def test_parameters_sum_to_the_table(name):
    code_dim, encoder_rows, decoder_rows = TABLES[name]
    with torch.device("meta"):
        encoder, decoder, _ = NETWORKS[name](code_dim)
    totals = tuple(sum(parameter.numel() for parameter in part.parameters()) for part in (encoder, decoder))
    assert totals == TOTALS[name] == (sum(r[-1] for r in encoder_rows), sum(r[-1] for r in decoder_rows))


def test_the_paper_activates_as_printed():
    encoder, decoder, _ = NETWORKS["paper"](64)
    kinds = [[type(m).__name__ for m in part] for part in (encoder, decoder)]
    assert kinds[0] == [*["Conv2d", "LeakyReLU"] * 3, *["ResidualLayer"] * 6, "LeakyReLU", "Conv2d", "LeakyReLU"]
    assert kinds[1] == [
        *("Conv2d", "LeakyReLU"),
        *["ResidualLayer"] * 6,
        *("LeakyReLU", "ConvTranspose2d", "LeakyReLU", "ConvTranspose2d", "Tanh"),
    ]


@pytest.mark.parametrize(("name", "relu_first"), [("paper", False), ("small", True)])
def test_a_residual_layer_is_its_formula(name, relu_first):
    torch.manual_seed(0)
    encoder, _, _ = NETWORKS[name](4)
    layer = next(m for m in encoder if type(m).__name__ == "ResidualLayer").double()
    w3, w1 = (parameter.detach() for parameter in layer.parameters())
    x = torch.randn(2, len(w3), 5, 6, dtype=torch.float64)
    seen = x.clamp(min=0) if relu_first else x
    spatial = nn.functional.unfold(seen, 3, padding=1).transpose(1, 2) @ w3.flatten(1).t()  # b, positions, channels
    moved = spatial.clamp(min=0) @ w1.flatten(1).t()
    assert torch.allclose(layer(x), x + moved.transpose(1, 2).reshape_as(x))


@pytest.mark.parametrize(("name", "width", "norm_groups"), [("taming", 128, 32), ("taming_small", 32, 8)])
def test_a_residual_block_is_its_formula(name, width, norm_groups):
    torch.manual_seed(0)
    encoder, _, _ = NETWORKS[name](3)
    block = next(m for m in encoder if type(m).__name__ == "ResidualBlock").double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.1)
    x = torch.randn(2, width, 4, 5, dtype=torch.float64)

    def half(y, norm, conv):
        groups = y.reshape(2, norm_groups, -1)
        groups = (groups - groups.mean(2, keepdim=True)) / (groups.var(2, correction=0, keepdim=True) + 1e-6).sqrt()
        y = groups.reshape_as(y) * norm.weight[:, None, None] + norm.bias[:, None, None]
        y = y * y.sigmoid()
        return nn.functional.conv2d(y, conv.weight, conv.bias, padding=1)

    expected = x + half(half(x, block.norm1, block.conv1), block.norm2, block.conv2)
    assert torch.allclose(block(x), expected)


@pytest.mark.parametrize(
    ("name", "downscale"), [("small", 4), ("paper", 4), ("taming", 8), ("taming_f4", 4), ("taming_small", 4)]
)
def test_strides_and_shapes(name, downscale):
    assert name in NETWORKS
    with torch.device("meta"):
        encoder, decoder, stated = NETWORKS[name](5)
        latents = encoder(torch.empty(2, 3, 4 * downscale, 6 * downscale))
        images = decoder(latents)
    assert stated == downscale
    assert latents.shape == (2, 5, 4, 6)
    assert images.shape == (2, 3, 4 * downscale, 6 * downscale)
    assert isinstance(decoder[-1], nn.Tanh)


def test_every_network_is_checked_here():
    assert set(NETWORKS) == {"small", *TABLES}


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
        options = {key: value for key, value in options.items() if key not in RESERVED}
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
