import argparse
import re
from dataclasses import fields

import pytest

from driftvq.training.config import TrainConfig
from driftvq.training.settings import add_flags, given_flags, make_config, parse_scalar, read_settings, write_settings


def parse(*words):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return given_flags(parser.parse_args(words))


def write(path, text):
    path.write_text(text)
    return path


def test_a_flag_that_is_not_given_sets_nothing():
    assert parse() == {}


def test_flags_of_all_kinds():
    given = parse(
        *("--codebook-size", "64", "--learning-rate", "1e-4", "--no-flip", "--strict", "--betas", "0.5", "0.9"),
        *("--data", "photos", "--devices", "2", "--quantizer-options", "commitment_weight=1", "kmeans_init=false"),
        *("--quantizer-options", "estimator=rotation"),
    )
    assert given == {
        "codebook_size": 64,
        "learning_rate": 1e-4,
        "flip": False,
        "strict": True,
        "betas": [0.5, 0.9],
        "data": "photos",
        "devices": 2,
        "quantizer_options": {"commitment_weight": 1, "kmeans_init": False, "estimator": "rotation"},
    }
    assert make_config(given).betas == (0.5, 0.9)
    assert parse("--devices", "0,1") == {"devices": "0,1"}


def test_every_field_has_a_flag_and_every_default_survives_yaml(tmp_path):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    for f in fields(TrainConfig):
        assert f"--{f.name.replace('_', '-')}" in parser.format_help()
    path = tmp_path / "all.yaml"
    write_settings(path, TrainConfig().to_dict())
    assert make_config(read_settings(path)) == TrainConfig()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--codebook-size", "many"), "argument --codebook-size: must be a whole number, got 'many'"),
        (("--learning-rate", "fast"), "argument --learning-rate: must be a number, got 'fast'"),
        (("--quantizer-options", "rotation"), "must be key=value, got 'rotation'"),
    ],
)
def test_wrong_flags_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        parse(*words)
    assert message in capsys.readouterr().err


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    file = read_settings(write(tmp_path / "c.yaml", "codebook_size: 64\nseed: 3\nlearning_rate: 5e-5\n"))
    config = make_config(file, parse("--seed", "4"))
    assert (config.codebook_size, config.seed, config.learning_rate, config.size) == (64, 4, 5e-5, 64)


def test_steps_and_epochs_replace_each_other_across_layers():
    assert make_config({"epochs": 3.0}, {"steps": 7}).epochs is None
    assert make_config({"steps": 7}, {"epochs": 3.0}).steps is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("codebok_size: 3", "unknown setting 'codebok_size'; known, nearest first: codebook_size"),
        ("codebook_size: many", "codebook_size must be a whole number, got 'many'"),
        ("codebook_size: true", "codebook_size must be a whole number, got True"),
        ("codebook_size: 3.5", "codebook_size must be a whole number, got 3.5"),
        ("flip: 1", "flip must be true or false, got 1"),
        ("betas: [0.9]", "betas must be two numbers, got [0.9]"),
        ("quantizer_options: 3", "quantizer_options must be a mapping of option names to values, got 3"),
        ("steps: x", "steps must be a whole number or null, got 'x'"),
        ("network:", "network must be text, got None"),
        ("- 3", "must hold `key: value` lines, got a list"),
        ("a: [", "is not valid YAML"),
        ("out: !!timestamp x", "is not valid YAML: AttributeError"),
        ("steps: !!int ''", "is not valid YAML: IndexError"),
        ("flip: !!bool x", "is not valid YAML: KeyError: 'x'"),
        ("out: 2026-99-99", "is not valid YAML: month must be in 1..12"),
        ("steps: 0x_", "is not valid YAML: invalid literal"),
        ("steps: " + "9" * 5000, "is not valid YAML: Exceeds the limit"),
        ("learning_rate: " + "9" * 400, "learning_rate must be a number, got 9999"),
        ("out: " + "[" * 3000, "allowed: 20 lists in lists"),
        ("quantizer_options: {a: &a [x, x], b: [*a, *a]}", "without aliases (*)"),
        ("steps: " + "x" * 9999, "steps must be a whole number or null, got 'xxxx"),
        ("#" * (1 << 20) + "\n", "1,048,577 bytes; allowed: at most 1,048,576"),
    ],
)
def test_wrong_files_are_refused_naming_file_and_key(tmp_path, text, message):
    path = write(tmp_path / "wrong.yaml", text)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_settings(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_option_that_is_no_yaml_is_a_text():
    assert parse_scalar("2026-99-99") == "2026-99-99"
    assert parse_scalar("[" * 3000) == "[" * 3000


def test_a_yaml_file_executes_nothing(tmp_path):
    path = write(tmp_path / "evil.yaml", f"seed: !!python/object/apply:pathlib.Path.touch ['{tmp_path / 'hit'}']")
    with pytest.raises(ValueError, match="not valid YAML"):
        read_settings(path)
    assert not (tmp_path / "hit").exists()


def test_an_empty_file_sets_nothing_and_a_missing_one_is_an_error(tmp_path):
    assert read_settings(write(tmp_path / "empty.yaml", "")) == {}
    with pytest.raises(ValueError, match="no such config file"):
        read_settings(tmp_path / "none.yaml")
