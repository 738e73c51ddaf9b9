"""A model at work: memory is bounded by the formula, whatever images come; large ones come in tiles."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch

from driftvq.data import ImageBatch, eval_batches, to_float, to_uint8
from driftvq.models import VQVAE, ModelConfig
from driftvq.models.architecture import NETWORKS
from driftvq.models.pretrained import model_hash
from driftvq.models.running import (
    NETWORK_BYTES,
    Room,
    decode_pixels,
    encode_pixels,
    find_margin,
    find_room,
    load_model,
    model_pairs,
    pixel_bytes,
    reconstructions,
)
from driftvq.tokens import decode_tokens, encode_source, open_tokens
from tests.data.files import png
from tests.tokens.cases import Source, make_model

MEGA = 1_000_000

LIMITED = """
import resource, sys
import torch
from driftvq.cli import main
torch.set_num_threads(1)
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize:"))
resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + {free},) * 2)
sys.exit(main({command}))
"""


def flat_png(side: int) -> bytes:
    """A black square: a few kilobytes, however large it is."""
    packer, row = zlib.compressobj(1), bytes(1 + side)
    return png(side, side, b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()]), colour=0)


def run_limited(free: int, command: list[str]) -> str:
    """What a command prints that may take so many bytes beyond what its libraries take."""
    code = LIMITED.format(free=free, command=command)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def save_flat_images(folder: Path, megapixels: tuple[float, ...]) -> Path:
    folder.mkdir()
    for pixels in megapixels:
        (folder / f"{pixels:06.2f}.png").write_bytes(flat_png(int((pixels * MEGA) ** 0.5)))
    return folder


def test_images_of_any_size_under_a_memory_limit(tmp_path: Path) -> None:
    """5 megapixels take 1.3 GB at once, but not in tiles; with the metrics beside them they are left out."""
    make_model().save_pretrained(tmp_path / "model")
    images = save_flat_images(tmp_path / "images", (0.1, 0.5, 5, 170))
    *_, evaluated = [run_limited(900 << 20, command) for command in commands_for(tmp_path, images)]
    assert list(open_tokens(tmp_path / "tokens").names()) == ["000.10.png", "000.50.png", "005.00.png"]
    decoded = sorted(path.name for path in (tmp_path / "decoded").iterdir())
    assert decoded == ["000.10.png", "000.50.png", "005.00.png"]
    reasons = skipped(tmp_path / "tokens")
    assert set(reasons) == {"170.00.png"}
    assert "13038 x 13038 pixels need 3,8" in reasons["170.00.png"]
    assert "skipped: 2 unreadable images" in evaluated
    assert "2236 x 2236 is more than" in evaluated


@pytest.mark.slow
def test_images_of_64_and_170_megapixels_under_a_memory_limit(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model")
    images = save_flat_images(tmp_path / "images", (1, 64, 170))
    for command in commands_for(tmp_path, images)[:2]:
        run_limited(int(170e6 * 24 / 0.8) + (900 << 20), command)
    assert len(open_tokens(tmp_path / "tokens")) == 3
    assert len(list((tmp_path / "decoded").iterdir())) == 3


@pytest.mark.slow
@pytest.mark.parametrize("pixels", [1, 12, 24])
def test_an_image_at_the_limit_fits_into_what_the_formula_says(pixels: int, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "images").mkdir()
    side = int((pixels * MEGA) ** 0.5)
    (tmp_path / "images" / "x.png").write_bytes(flat_png(side))
    free = int(side * side * (pixel_bytes(model) + 160) / 0.8) + (400 << 20)
    for command in commands_for(tmp_path, tmp_path / "images"):
        run_limited(free, [*command, "--max-pixels", str(side**2)])
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


def test_the_room_follows_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr("driftvq.models.running.available_memory", lambda: 10 * pixel_bytes(model))
    assert find_room(model) == Room(8, 8, None), "not even one position with its margin has room"
    assert find_room(model, more=pixel_bytes(model)).at_once == 4
    assert find_room(model, workers=8).at_once == int(8 * pixel_bytes(model) / (pixel_bytes(model) + 8 * 40))
    monkeypatch.setattr("driftvq.models.running.available_memory", lambda: 2 << 30)
    room, usable = find_room(model), int(0.8 * (2 << 30))
    assert room.at_once == usable // pixel_bytes(model)
    assert 24 * room.image + pixel_bytes(model) * 2**20 <= usable < 24 * (room.image + 1) + pixel_bytes(model) * 2**20
    assert find_room(model, max_pixels=400) == Room(400, 400, room.margin)
    assert find_room(model, max_pixels=10**9) == Room(room.at_once, 10**9, room.margin)


@pytest.mark.parametrize(("network", "margin"), [("small", 4), ("paper", 8), ("taming", None), ("taming_small", None)])
def test_the_margin_is_what_the_convolutions_see(network: str, margin: int | None) -> None:
    """r = 3 or 7 convolutions of 3×3 see r positions, those of 4×4 3 pixels more: ⌈(4r + 3) / 4⌉; norms see all."""
    assert find_margin(VQVAE(ModelConfig(network=network, codebook_size=8, code_dim=4))) == margin


@pytest.mark.parametrize("quantizer", ["vq", "residual_vq"])
@pytest.mark.parametrize("size", [(130, 257), (64, 301)])
def test_tiles_give_what_the_whole_image_gives(quantizer: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    options = {"num_quantizers": 2} if quantizer == "residual_vq" else {}
    config = ModelConfig(quantizer=quantizer, codebook_size=64, code_dim=8, quantizer_options=options)
    model = VQVAE(config).double().eval()  # rounding depends on the size of a tile, and must not decide
    images = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)
    whole, tiled = Room(10**9, 10**9, 4), Room(2 * 60 * 60, 10**9, find_margin(model))
    indices = encode_pixels(model, images, whole)
    assert torch.equal(encode_pixels(model, images, tiled), indices)
    assert torch.equal(decode_pixels(model, indices, size, tiled), decode_pixels(model, indices, size, whole))
    narrow = decode_pixels(model, indices, size, tiled._replace(margin=1))
    assert not torch.equal(narrow, decode_pixels(model, indices, size, whole)), "the margin is needed"


def test_larger_images_are_skipped_and_listed(tmp_path: Path) -> None:
    model, room = make_model(), Room(400, 400)
    source = Source([(16, 16), (40, 40), (16, 20)])
    tokens = encode_source(model, source, tmp_path / "tokens", room=room)
    assert list(tokens.names()) == [source.name(0), source.name(2)]
    assert skipped(tmp_path / "tokens") == {source.name(1): "40 x 40 is more than 400 pixels, the limit here"}
    with eval_batches(source, size=None, batch_size=1, max_pixels=400) as batches:
        results = list(reconstructions(model, batches, room))
    assert [name for result in results for name in result.names] == [source.name(0), source.name(2)]
    with pytest.raises(ValueError, match=r"image-00001.* is more than 400 pixels"):
        encode_source(model, source, tmp_path / "strict", room=room, strict=True)


def test_a_batch_ends_before_it_has_more_pixels(tmp_path: Path) -> None:
    source = Source([(16, 16)] * 7 + [(40, 40)])
    tokens = encode_source(make_model(), source, tmp_path / "tokens", batch_size=7, room=Room(800, 2000))
    assert tokens.batch_sizes.tolist() == [3, 3, 1, 1], "what is larger is a batch of its own"


def test_decoding_leaves_out_what_is_too_large_and_divides_batches(tmp_path: Path) -> None:
    model = make_model()
    tokens = encode_source(model, Source([(16, 16)] * 5 + [(40, 40)]), tmp_path / "tokens", batch_size=5)
    decode_tokens(model, tokens, tmp_path / "out", room=Room(600, 600))
    assert len(list((tmp_path / "out" / "folder").iterdir())) == 5
    name = "folder/image-00005.jpg"
    assert skipped(tmp_path / "out") == {name: "40 x 40 is more than 600 pixels, the limit here"}


def test_a_cpu_takes_images_one_by_one_unless_told(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    loaded, device, batch_size = load_model(str(tmp_path), "cpu")
    assert batch_size == 1
    assert device == torch.device("cpu")
    assert model_hash(loaded) == model_hash(model)
    assert not loaded.training
    assert load_model(str(tmp_path), "cpu", 5)[2] == 5


def image_batches():
    generator = torch.Generator().manual_seed(0)
    for count in (3, 2):
        images = torch.randint(0, 256, (count, 3, 18, 23), dtype=torch.uint8, generator=generator)
        yield ImageBatch(images, [str(number) for number in range(count)], [("bad.jpg", "truncated")])


def test_pairs_are_originals_reconstructions_and_indices():
    model = VQVAE(ModelConfig(codebook_size=32, code_dim=8)).eval()
    skipped = []
    pairs = list(model_pairs(model, image_batches(), skipped=lambda *problem: skipped.append(problem)))
    assert skipped == [("bad.jpg", "truncated")] * 2
    for (real, fake, indices), batch in zip(pairs, image_batches(), strict=True):
        assert torch.equal(real, batch.images)
        assert fake.dtype == torch.uint8
        assert torch.equal(indices, model.encode(to_float(real)))
        assert torch.equal(fake, to_uint8(model.reconstruct(to_float(real))))


def test_a_plain_autoencoder_has_no_indices():
    model = VQVAE(ModelConfig(quantizer="none", code_dim=8)).eval()
    for real, fake, indices in model_pairs(model, image_batches()):
        assert indices is None
        assert fake.shape == real.shape


def test_images_smaller_than_a_token_are_skipped():
    model = VQVAE(ModelConfig(codebook_size=32, code_dim=8)).eval()
    batches = [ImageBatch(torch.zeros(2, 3, side, 9, dtype=torch.uint8), ["a", "b"], []) for side in (3, 8)]
    skipped = []
    pairs = list(model_pairs(model, batches, skipped=lambda *problem: skipped.append(problem)))
    assert [tuple(real.shape) for real, _, _ in pairs] == [(2, 3, 8, 9)]
    assert skipped == [(name, "3×9 pixels, the model needs 4×4") for name in "ab"]


def test_codes_of_a_whole_grid_cannot_be_found_in_tiles():
    model = VQVAE(ModelConfig(quantizer="multi_scale_vq", codebook_size=16, code_dim=8))
    assert find_margin(model) is None
