import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.models import ModelConfig

NESTED: list[object] = []
for _ in range(500):
    NESTED = [NESTED]


def test_defaults():
    config = ModelConfig()
    assert (config.network, config.quantizer) == ("small", "ns_vq")
    assert (config.codebook_size, config.code_dim, config.quantizer_options) == (1024, 64, {})


def test_json_gives_it_back():
    config = ModelConfig("paper", "fsq", 1000, 3, {"levels": (8, 5, 5, 5), "a": True, "b": 0.5, "c": None, "d": "x"})
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_neither_the_dict_given_nor_the_dict_taken_is_shared():
    options = {"levels": [8, 5]}
    config = ModelConfig(quantizer_options=options)
    options["levels"].append(3)
    config.to_dict()["quantizer_options"]["levels"].append(4)
    assert config.quantizer_options == {"levels": [8, 5]}


def test_absent_fields_have_their_defaults():
    assert ModelConfig.from_dict({"code_dim": 3}) == ModelConfig(code_dim=3)


def test_an_unknown_field_is_refused_nearest_first():
    with pytest.raises(ValueError, match=r"unknown field of the model config 'codebok_size'; .*first: codebook_size,"):
        ModelConfig.from_dict({"codebok_size": 64})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"network": 3}, "network must be a name, got 3"),
        ({"quantizer": ""}, "quantizer must be a name, got ''"),
        ({"codebook_size": 0}, "codebook_size must be a whole number of at least 1, got 0"),
        ({"codebook_size": True}, "codebook_size must be a whole number of at least 1, got True"),
        ({"code_dim": 64.0}, "code_dim must be a whole number of at least 1, got 64.0"),
        ({"quantizer_options": [1]}, r"quantizer_options must be a mapping of names to values, got \[1\]"),
        ({"quantizer_options": {1: 2}}, "quantizer_options must have names for keys, got 1"),
        ({"quantizer_options": {"a": {}}}, r"quantizer_options\['a'\] must be a finite number, .*, got {}"),
        ({"quantizer_options": {"a": float("nan")}}, r"quantizer_options\['a'\] must be a finite number, .*, got nan"),
        ({"quantizer_options": {"a": [print]}}, r"quantizer_options\['a'\] must be a finite number, .* got <built-in"),
        ({"quantizer_options": {"dim": 3}}, "quantizer_options must not contain 'dim': set the config's code_dim"),
        ({"quantizer_options": {"channel_first": True}}, "must not contain 'channel_first': images fix it"),
        ({"codebook_size": 2**28 + 1}, "codebook_size must be at most 268,435,456, got 268,435,457"),
        ({"codebook_size": 10**5000}, "codebook_size must be at most 268,435,456, got one of 16,610 bits"),
        ({"code_dim": 2**40}, "code_dim must be at most 65,536, got 1,099,511,627,776"),
        ({"quantizer_options": {"a": NESTED}}, r"quantizer_options\['a'\] must have .* and 4 lists in lists"),
        ({"quantizer_options": {"a": [3] * 1001}}, r"quantizer_options\['a'\] must have at most 1,000 items a list"),
        ({"quantizer_options": {"a": "x" * 1001}}, "must have at most 1,000 characters, got 1,001"),
        ({"quantizer_options": {"a": -(10**300)}}, "must lie between .* and 2.53, got one of 997 bits"),
        ({"quantizer_options": {"a": {"b": "x" * 10**6}}}, "must be a finite number, .{110,140}$"),
        ({"x" * 10**6: 1}, "unknown field of the model config 'x{78}…; known"),
        (
            {"quantizer": "none", "quantizer_options": {"a": 1}},
            "quantizer 'none' takes no quantizer_options, got {'a': 1}",
        ),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(values)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from([*ModelConfig().to_dict(), "x"]), PLAIN | st.integers(0, 2**70) | st.sampled_from(["vq", "fsq"])
    )
    | PLAIN
)
@settings(max_examples=200, deadline=None)
def test_any_json_is_a_config_or_one_line(values):
    try:
        config = ModelConfig.from_dict(values)
    except ValueError as error:
        message = str(error)
        config = None
    if config is None:
        assert "\n" not in message
        assert len(message) < 500
    else:
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_it_must_be_a_mapping():
    with pytest.raises(ValueError, match="must be a mapping of field names to values, got list"):
        ModelConfig.from_dict([])


def test_a_config_does_not_load_torch():
    code = "import sys; from driftvq.models import ModelConfig; ModelConfig().to_dict(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
