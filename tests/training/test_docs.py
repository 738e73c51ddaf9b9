"""The commands and files in the docs are ones that work."""

import re
import shlex

import pytest

from driftvq.cli import make_parser
from driftvq.training.settings import given_flags, make_config, read_settings


@pytest.fixture
def pages(pytestconfig):
    return [(pytestconfig.rootpath / "docs" / name).read_text() for name in ("training.md", "scale.md")]


def test_every_command_is_a_config(pages):
    commands = []
    for block in re.findall(r"```sh\n(.*?)```", "".join(pages), re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        commands += [shlex.split(line, comments=True) for line in lines if line.startswith("driftvq train")]
    assert len(commands) >= 7
    for words in commands:
        make_config(given_flags(make_parser(["train"]).parse_args(words[1:])))


def test_every_file_is_a_config(pages, tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", "".join(pages), re.DOTALL)
    assert blocks
    for block in blocks:
        path = tmp_path / "config.yaml"
        path.write_text(block)
        assert make_config(read_settings(path)).codebook_size == 1024
