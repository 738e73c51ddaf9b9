import re
from pathlib import Path

import pytest

from driftvq.models import NETWORKS
from driftvq.models.model_config import ModelConfig

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_of_networks_is_right(name):
    row = re.search(rf"^\| `{name}` \| (\d+) \| ([\d,]+) \| ([\d,]+) \|", PAGE, flags=re.MULTILINE)
    encoder, decoder, stride = NETWORKS[name](3 if name.startswith("taming") else 64)
    counts = [f"{sum(p.numel() for p in part.parameters()):,}" for part in (encoder, decoder)]
    assert [row[1], row[2], row[3]] == [str(stride), *counts]


@pytest.mark.parametrize("name", ModelConfig.__dataclass_fields__)
def test_every_field_is_explained_with_its_default(name):
    default = ModelConfig().to_dict()[name]
    shown = f'"{default}"' if isinstance(default, str) else str(default)
    assert re.search(rf"^\| `{name}` \| `?{re.escape(shown)}`? \|", PAGE, flags=re.MULTILINE)
