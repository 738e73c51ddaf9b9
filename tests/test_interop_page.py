"""The page "swap it into your loop": its code runs, and its recipes keep a model through saving and loading."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import driftvq
from tests.pages import ROOT, run

PAGE = ROOT / "docs" / "interop.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the page's blocks leave behind."""
    torch.manual_seed(0)
    return run(PAGE)


def test_every_adapter_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    adapters = [name for name in driftvq.__all__ if name.startswith(("as_", "from_"))]
    assert len(adapters) >= 9
    assert [name for name in adapters if f"{name}(" not in page] == []


def test_the_codec_of_the_page_encodes_fewer_levels(names: dict[str, Any]) -> None:
    assert names["few"].shape[2] == 1
    assert names["sound"].shape == names["audio"].shape
    assert names["loss"].isfinite()


def loss_of(model: nn.Module, step: int) -> tuple[Tensor, Tensor]:
    """The loss of a training step, and what tells two models apart."""
    generator = torch.Generator().manual_seed(step)
    if hasattr(model, "vqvae"):
        images = torch.rand(4, 3, 16, 16, generator=generator)
        out = model(images)
        return (out.sample - images).square().mean() + out.commit_loss, out.sample
    audio = torch.randn(4, 1, 320, generator=generator)
    out = model(audio)
    return out.loss + out.audio_values.square().mean(), out.audio_codes


def train(model: nn.Module, steps: range) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step)[0].backward()
        optimizer.step()


def same_but_for_rounding(mine: Tensor, other: Tensor, name: str) -> None:
    """A loader may hand over memory that is not aligned, in which products round otherwise."""
    torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("recipe", ["codec", "tokenizer"])
def test_a_model_survives_saving_loading_and_training_on(names: dict[str, Any], recipe: str, tmp_path: Path) -> None:
    model = copy.deepcopy(names[recipe])
    train(model, range(10))
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for each in (range(10, 11), range(11, 14)):
        for (name, mine), other in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
            same_but_for_rounding(mine, other, name)
        model.eval()
        loaded.eval()
        torch.testing.assert_close(loss_of(model, 9)[1], loss_of(loaded, 9)[1], rtol=1e-3, atol=1e-4)
        train(model, each)
        train(loaded, each)


@pytest.mark.parametrize("name", driftvq.QUANTIZERS)
def test_every_quantizer_survives_from_pretrained_of_transformers(name: str, tmp_path: Path) -> None:
    from transformers import PreTrainedConfig, PreTrainedModel

    class Tokenizer(PreTrainedModel):
        config_class = PreTrainedConfig

        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.encoder = nn.Linear(6, 6)
            self.quantizer = driftvq.make_quantizer(**config.quantizer)
            self.post_init()

        def forward(self, x: Tensor) -> driftvq.QuantizerOutput:
            return self.quantizer(self.encoder(x))

    def step(model: Tokenizer, seed: int) -> Tensor:
        torch.manual_seed(seed)
        x = torch.randn(40, 6).to(model.encoder.weight.dtype)
        quantized, indices, loss = model(x)
        (quantized.float().square().mean() + loss.float()).backward()
        return indices

    config = PreTrainedConfig()
    config.quantizer = {"name": name, "dim": 6, "codebook_size": 64}
    torch.manual_seed(0)
    model = Tokenizer(config).train()
    for seed in range(7):  # 280 latents: the k-means start is over
        step(model, seed)
    model.save_pretrained(tmp_path)
    loaded, half = (Tokenizer.from_pretrained(tmp_path, dtype=dtype).train() for dtype in (None, torch.float16))
    for seed in range(7, 10):
        assert torch.equal(step(loaded, seed), step(model, seed))
        step(half, seed)
    for key, tensor in half.state_dict().items():
        same_but_for_rounding(loaded.state_dict()[key], model.state_dict()[key], key)
        assert not tensor.is_floating_point() or tensor.isfinite().all(), key
