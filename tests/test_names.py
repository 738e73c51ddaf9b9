from importlib import metadata

import pytest

from driftvq.names import check_name, importer, install_command, nearest_names, shortened, shortened_text


def test_a_known_name_passes_and_an_unknown_one_gets_the_nearest_first() -> None:
    assert check_name("fruit", "pear", ["apple", "pear"]) == "pear"
    with pytest.raises(ValueError, match="unknown fruit 'peer'; known, nearest first: pear, apple"):
        check_name("fruit", "peer", ["apple", "pear"])
    with pytest.raises(ValueError, match="known, nearest first: none"):
        check_name("fruit", "pear", [])
    with pytest.raises(ValueError, match=r"nearest first: a1, \w\d, \w\d, \w\d, \w\d; all: ls$"):
        check_name("file", "a11", [f"{letter}{digit}" for letter in "abc" for digit in range(9)], "ls")


def test_what_others_call_a_thing_is_like_its_name() -> None:
    known = ["estimator", "commitment-weight", "learning_rate"]
    assert nearest_names("beta", known)[0] == "commitment-weight"
    assert nearest_names("lr", known, least=0.9) == ["learning_rate"]
    assert nearest_names("xyz", known, least=0.9) == []


def test_long_values_are_cut_and_endless_ones_described() -> None:
    assert shortened("x" * 100) == "'" + "x" * 78 + "…"
    assert shortened([1, 2]) == "[1, 2]"
    assert shortened(10**5000) == "a int too large to show"
    assert shortened_text("a  b\n" * 200, 10) == "a b a b a…"


def test_a_name_is_imported_when_it_is_asked_for() -> None:
    find = importer("json", decoder="JSONDecoder JSONDecodeError", encoder="JSONEncoder")
    assert find("JSONDecoder") is __import__("json").JSONDecoder
    with pytest.raises(AttributeError, match="module 'json' has no attribute 'missing'"):
        find("missing")


def test_what_is_missing_is_installed_by_the_names_of_packages(monkeypatch) -> None:
    declared = ["numpy>=1.24", "nosuchpackage>=2; extra == 'tokenizer'", "torch>=2.5; extra == 'tokenizer'"]
    declared += ["nosuchother>=3; extra == 'onnx'"]
    monkeypatch.setattr(metadata, "requires", lambda package: declared)
    assert install_command("tokenizer") == 'pip install "nosuchpackage>=2"'
    assert install_command("onnx") == 'pip install "nosuchother>=3"'
    monkeypatch.setattr(metadata, "requires", lambda package: None)
    assert install_command("onnx") == 'pip install ".[onnx]" in a checkout of driftvq'
