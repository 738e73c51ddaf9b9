"""Memory is bounded by the formula, whatever images come."""

import json
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from driftvq.machine import available_memory
from driftvq.models.networks import NETWORKS
from driftvq.tokens import decode_tokens, encode_source, open_tokens
from driftvq.tokens.pixel_limit import NETWORK_BYTES, pixel_bytes, pixel_limit
from driftvq.tokens.reconstructing import Reconstruction, reconstruct_images
from tests.data.files import png
from tests.tokens.cases import Source, make_model

MEGA = 1_000_000

LIMITED = """
import resource, sys
from pathlib import Path
import torch
from driftvq.cli import main
torch.set_num_threads(1)
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize:"))
resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + {free},) * 2)
for command in {commands}:
    if main(command) != 0:
        sys.exit(1)
"""


def flat_png(side: int) -> bytes:
    """A black square: a few kilobytes, however large it is."""
    packer, row = zlib.compressobj(1), bytes(1 + side)
    return png(side, side, b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()]), colour=0)


def run_limited(free: int, commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
    code = LIMITED.format(free=free, commands=commands)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)


def skipped(folder: Path) -> dict[str, str]:
    lines = (folder / "skipped.txt").read_text().splitlines()
    return {json.loads(name): reason for name, _, reason in (line.partition("\t") for line in lines)}


def commands_for(folder: Path, images: Path) -> list[list[str]]:
    model = str(folder / "model")
    return [
        ["encode", model, str(images), "-o", str(folder / "tokens")],
        ["decode", model, str(folder / "tokens"), "-o", str(folder / "decoded")],
        ["evaluate", model, "--data", str(images), "--metrics", "psnr", "ssim", "--batch-size", "4"],
    ]


def test_images_of_any_size_under_a_memory_limit(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    images = tmp_path / "images"
    images.mkdir()
    for pixels in (0.1, 0.5, 12, 64, 170):
        side = int((pixels * MEGA) ** 0.5)
        (images / f"{pixels:06.2f}.png").write_bytes(flat_png(side))
    done = run_limited(900 << 20, commands_for(tmp_path, images))
    assert done.returncode == 0, done.stderr
    assert list(open_tokens(tmp_path / "tokens").names()) == ["000.10.png", "000.50.png"]
    assert sorted(path.name for path in (tmp_path / "decoded").iterdir()) == ["000.10.png", "000.50.png"]
    reasons = skipped(tmp_path / "tokens")
    assert set(reasons) == {"012.00.png", "064.00.png", "170.00.png"}
    assert "3464 x 3464 is more than" in reasons["012.00.png"]
    assert "13038 x 13038 pixels need 3,8" in reasons["170.00.png"]
    assert "skipped: 3 unreadable images" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("pixels", [1, 12, 24])
def test_an_image_at_the_limit_fits_into_what_the_formula_says(pixels: int, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "images").mkdir()
    side = int((pixels * MEGA) ** 0.5)
    (tmp_path / "images" / "x.png").write_bytes(flat_png(side))
    free = int(side * side * (pixel_bytes(model) + 160) / 0.8) + (400 << 20)
    commands = [[*command, "--max-pixels", str(side**2)] for command in commands_for(tmp_path, tmp_path / "images")]
    done = run_limited(free, commands)
    assert done.returncode == 0, done.stderr
    assert len(open_tokens(tmp_path / "tokens")) == 1


MEASURED = """
import sys, torch
from driftvq.models import VQVAE, ModelConfig
torch.set_num_threads(1)
def field(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
model = VQVAE(ModelConfig(network={network!r}, quantizer="vq")).eval()
def peak(side):
    open("/proc/self/clear_refs", "w").write("5")
    model.reconstruct(torch.zeros(1, 3, side, side))
    return field("VmHWM:")
peak({side} // 2)
print((peak({side}) - peak({side} // 2)) / ({side} ** 2 * 3 / 4))  # what does not grow is on both sides
"""


@pytest.mark.parametrize(
    "network", [pytest.param(name, marks=[pytest.mark.slow] * (name != "small")) for name in NETWORKS]
)
def test_a_network_takes_what_is_stated(network: str) -> None:
    code = MEASURED.format(network=network, side=800 if network == "small" else 600)
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # else the heap's holes count, now more, now less
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    latents = 5 * 4 * 64 / (64 if network == "taming" else 16)
    assert NETWORK_BYTES[network] / 2 < float(done.stdout) < NETWORK_BYTES[network] + latents


def test_free_memory_is_what_every_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    free = available_memory()
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()) * 1024
    assert 0 < free <= total
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert available_memory() == 0


def test_the_limit_follows_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr("driftvq.tokens.pixel_limit.available_memory", lambda: 10 * pixel_bytes(model))
    assert pixel_limit(model) == 8
    assert pixel_limit(model, more=pixel_bytes(model)) == 4
    assert pixel_limit(model, workers=8) == int(8 * pixel_bytes(model) / (pixel_bytes(model) + 8 * 40))


def test_larger_images_are_skipped_and_listed(tmp_path: Path) -> None:
    model = make_model()
    source = Source([(16, 16), (40, 40), (16, 20)])
    tokens = encode_source(model, source, tmp_path / "tokens", max_pixels=400)
    assert list(tokens.names()) == [source.name(0), source.name(2)]
    assert skipped(tmp_path / "tokens") == {source.name(1): "40 x 40 is more than 400 pixels, the limit here"}
    results = list(reconstruct_images(model, source, max_pixels=400))
    assert sorted(isinstance(result, Reconstruction) for result in results) == [False, True, True]
    with pytest.raises(ValueError, match=r"image-00001.* is more than 400 pixels"):
        encode_source(model, source, tmp_path / "strict", max_pixels=400, strict=True)


def test_a_batch_ends_before_it_has_more_pixels(tmp_path: Path) -> None:
    tokens = encode_source(make_model(), Source([(16, 16)] * 7), tmp_path / "tokens", batch_size=7, max_pixels=800)
    assert tokens.batch_sizes.tolist() == [3, 3, 1]


def test_decoding_leaves_out_what_is_too_large_and_divides_batches(tmp_path: Path) -> None:
    model = make_model()
    tokens = encode_source(model, Source([(16, 16)] * 5 + [(40, 40)]), tmp_path / "tokens", batch_size=5)
    decode_tokens(model, tokens, tmp_path / "out", max_pixels=600)
    assert len(list((tmp_path / "out" / "folder").iterdir())) == 5
    name = "folder/image-00005.jpg"
    assert skipped(tmp_path / "out") == {name: "40 x 40 is more than 600 pixels, the limit here"}
