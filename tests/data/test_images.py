import os
import pickle
import sys
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from driftvq.data.images import MAX_PIXELS, BadImageError, fit_image, read_image, to_float, to_uint8, write_image
from tests.data.files import encoded, noise, png, smooth


def test_values_go_to_float_and_back() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    floats = to_float(values)
    assert floats.dtype == torch.float32
    assert (floats[0], floats[255]) == (-1, 1)
    np.testing.assert_allclose(floats.numpy(), np.arange(256) / 127.5 - 1, atol=1e-7)
    assert torch.equal(to_uint8(floats), values)


def test_to_uint8_clamps_and_rounds() -> None:
    x = torch.tensor([-3.0, -1.0, 0.0, 2 * 200.6 / 255 - 1, 2 * 200.4 / 255 - 1, 1.0, 9.0])
    assert to_uint8(x).tolist() == [0, 0, 128, 201, 200, 255, 255]
    assert to_uint8(x.to(torch.bfloat16)).dtype == torch.uint8


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP"])
def test_lossless_formats_give_the_pixels_that_were_written(kind: str, tmp_path: Path) -> None:
    image = np.full((5, 7, 3), (10, 200, 30), np.uint8)
    path = tmp_path / f"x.{kind.lower()}"
    path.write_bytes(encoded(image, kind, **({"lossless": True} if kind == "WEBP" else {})))
    for source in (path, str(path), path.read_bytes()):
        np.testing.assert_array_equal(read_image(source), image)


def test_large_files_are_not_read_at_once_but_give_the_same(tmp_path: Path) -> None:
    image = noise(700, 700)
    path = tmp_path / "x.bmp"
    path.write_bytes(encoded(image, "BMP"))
    assert path.stat().st_size > 1 << 20
    np.testing.assert_array_equal(read_image(path), image)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = noise(4, 6)
    stored = {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.transpose(1, 0, 2),
        6: lambda x: np.rot90(x, 1),
        7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
        8: lambda x: np.rot90(x, -1),
    }[orientation](upright)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(np.ascontiguousarray(stored), "PNG", exif=exif)
    np.testing.assert_array_equal(read_image(data), upright)


def test_damaged_exif_is_ignored() -> None:
    image = smooth(16, 16)
    damaged = encoded(image, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(read_image(damaged), read_image(encoded(image, "JPEG")))


def test_cmyk_jpeg() -> None:
    buffer = BytesIO()
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(buffer, format="JPEG", quality=100)
    np.testing.assert_allclose(read_image(buffer.getvalue())[4, 4], (255, 0, 0), atol=4)


def test_16_bit_gray_is_scaled_not_clipped() -> None:
    values = np.array([[0, 257, 128 * 257, 40000, 65535]], np.uint16)
    rows = b"\0" + values.astype(">u2").tobytes()
    result = read_image(png(5, 1, rows, depth=16, colour=0))
    assert result[0, :, 0].tolist() == [0, 1, 128, round(40000 / 257), 255]
    assert (result == result[:, :, :1]).all()


def test_16_bit_colour() -> None:
    rows = b"\0" + np.array([[[0, 128 * 257, 65535]]], ">u2").tobytes()
    assert read_image(png(1, 1, rows, depth=16, colour=2))[0, 0].tolist() == [0, 128, 255]


def test_tiff_with_values_beyond_16_bits_is_refused() -> None:
    buffer = BytesIO()
    Image.fromarray(np.array([[0, 1 << 20]], np.int32)).save(buffer, format="TIFF")
    with pytest.raises(BadImageError, match=r"outside 0\.\.65535"):
        read_image(buffer.getvalue())
    buffer = BytesIO()
    Image.fromarray(np.ones((2, 2), np.float32)).save(buffer, format="TIFF")
    with pytest.raises(BadImageError, match="floating-point"):
        read_image(buffer.getvalue())


def test_palette_with_transparency_lies_on_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255] + [0] * 762)
    image.putpixel((1, 0), 1)
    buffer = BytesIO()
    image.save(buffer, format="PNG", transparency=0)
    assert read_image(buffer.getvalue())[0].tolist() == [[255, 255, 255], [0, 0, 255]]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_half_transparent_pixels_are_mixed_with_white(mode: str) -> None:
    buffer = BytesIO()
    Image.new(mode, (1, 1), (0, 0, 0, 128) if mode == "RGBA" else (0, 128)).save(buffer, format="PNG")
    np.testing.assert_allclose(read_image(buffer.getvalue())[0, 0], 127, atol=1)


@pytest.mark.parametrize("mode", ["1", "L"])
def test_gray_and_bilevel(mode: str) -> None:
    buffer = BytesIO()
    Image.new(mode, (2, 2), 1 if mode == "1" else 77).save(buffer, format="PNG")
    assert (read_image(buffer.getvalue()) == (255 if mode == "1" else 77)).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    buffer = BytesIO()
    frames[0].save(buffer, format=kind, save_all=True, append_images=frames[1:], lossless=True)
    np.testing.assert_allclose(read_image(buffer.getvalue()), np.broadcast_to((255, 0, 0), (4, 4, 3)), atol=2)


def _truncated(kind: str) -> bytes:
    whole = encoded(noise(64, 64), kind)
    return whole[: len(whole) // 2]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated.jpg": (lambda: _truncated("JPEG"), "truncated"),
    "truncated.png": (lambda: _truncated("PNG"), "truncated"),
    "truncated.webp": (lambda: _truncated("WEBP"), "."),
    "truncated.gif": (lambda: _truncated("GIF"), "truncated"),
    "header-only.jpg": (lambda: encoded(noise(64, 64), "JPEG")[:30], "."),
    "empty.jpg": (lambda: b"", r"empty \(0 bytes\)"),
    "text.jpg": (lambda: b"this is no image\n" * 50, "not an image"),
    "postscript.jpg": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not an image"),
    "bomb.png": (lambda: png(30_000, 30_000, b"\0" * 10), "pixels"),
    "flat-bomb.png": (lambda: png(2**31 - 1, 1, b"\0" * 10), "pixels"),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_files_have_a_reason(name: str, tmp_path: Path) -> None:
    make, reason = BAD[name]
    path = tmp_path / name
    path.write_bytes(make())
    for source in (path, make()):
        with pytest.raises(BadImageError, match=reason) as caught:
            read_image(source)
        assert "\n" not in str(caught.value)
    with pytest.raises(BadImageError, match=name):
        read_image(path)


def test_the_error_survives_the_way_between_processes() -> None:
    copy = pickle.loads(pickle.dumps(BadImageError("truncated", "x.jpg")))
    assert (str(copy), copy.reason) == ("cannot read x.jpg: truncated", "truncated")


def test_pillow_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"pip install .*pillow>=10"):
        read_image(b"x")


def test_pillows_global_settings_stay() -> None:
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(BadImageError):
        read_image(png(30_000, 30_000, b""))
    read_image(encoded(noise(4, 4)))
    assert before == Image.MAX_IMAGE_PIXELS
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_the_limit_holds_when_pillows_own_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(BadImageError, match=f"{MAX_PIXELS:,}"):
        read_image(png(20_000, 20_000, b""))


def test_what_the_free_memory_does_not_hold_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftvq.data.images.available_memory", lambda: 100 << 20)
    with pytest.raises(BadImageError, match="3000 x 2000 pixels need 137 MB to be read, 100 MB are free"):
        read_image(png(3000, 2000, b""))
    jpeg = encoded(smooth(2100, 2000), "JPEG")
    assert read_image(jpeg, min_side=200).shape == (262, 250, 3)  # decoded at an eighth, it is small
    with pytest.raises(BadImageError, match="2000 x 2100 pixels need 96 MB"):
        read_image(jpeg)


def test_what_is_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "x.jpg"
    folder.mkdir()
    with pytest.raises(BadImageError, match="a folder"):
        read_image(folder)
    with pytest.raises(BadImageError, match="No such file"):
        read_image(tmp_path / "gone.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(BadImageError, match="a pipe"):
        read_image(tmp_path / "pipe.jpg")


def test_min_side_decodes_less_and_stays_large_enough() -> None:
    image = smooth(600, 900)
    data = encoded(image, "JPEG", quality=95)
    assert read_image(data, min_side=301).shape == (600, 900, 3)
    half, eighth = read_image(data, min_side=300), read_image(data, min_side=75)
    assert half.shape == (300, 450, 3)
    assert eighth.shape == (75, 112, 3)  # 112.5: half a pixel would be made up
    np.testing.assert_array_equal(half, read_image(data, min_side=300))
    exact = fit_image(read_image(data), 75)
    assert np.abs(fit_image(eighth, 75).astype(int) - exact).mean() < 2


def test_min_side_counts_for_turned_images_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(smooth(400, 800), "JPEG", exif=exif)
    assert read_image(data, min_side=100).shape == (200, 100, 3)


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (200, 130), (64, 64), (64, 99), (1, 1), (7, 64)])
def test_fit_equals_scaling_the_whole_and_cutting_the_centre(shape: tuple[int, int]) -> None:
    image = smooth(*shape)
    height, width = shape
    scale = 64 / min(shape)
    whole = Image.fromarray(image).resize(
        (max(64, round(width * scale)), max(64, round(height * scale))), Image.Resampling.LANCZOS
    )
    left, top = (whole.width - 64) // 2, (whole.height - 64) // 2
    expected = np.array(whole)[top : top + 64, left : left + 64].astype(int)
    result = fit_image(image, 64)
    assert result.shape == (64, 64, 3)
    assert result.dtype == np.uint8
    assert np.abs(result - expected).max() <= 1


def test_fit_leaves_a_square_of_the_size_alone() -> None:
    image = noise(32, 32)
    np.testing.assert_array_equal(fit_image(image, 32), image)


def test_a_thin_strip_costs_no_memory() -> None:
    strip = np.zeros((1, 2_000_000, 3), np.uint8)  # scaled as a whole it would have 24 gigabytes
    assert fit_image(strip, 64, "random", True, np.random.default_rng(0)).shape == (64, 64, 3)


def test_random_crops_reach_both_ends_and_flip() -> None:
    image = np.broadcast_to(np.arange(12, dtype=np.uint8)[None, :, None], (8, 12, 3))
    seen = {tuple(fit_image(image, 8, "random", True, np.random.default_rng(seed))[0, :, 0]) for seed in range(200)}
    straight = {tuple(range(left, left + 8)) for left in range(5)}
    assert seen == straight | {row[::-1] for row in straight}


def test_fit_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="unknown crop 'centre'"):
        fit_image(noise(4, 4), 2, "centre")
    with pytest.raises(ValueError, match="rng"):
        fit_image(noise(4, 4), 2, "random")


def test_write_and_read_again(tmp_path: Path) -> None:
    image = noise(9, 5)
    path = tmp_path / "x.png"
    write_image(path, image)
    np.testing.assert_array_equal(read_image(path), image)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.png"]
    with pytest.raises(ValueError, match=r"float64 \(2, 2\)"):
        write_image(path, np.zeros((2, 2)))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.png"
    write_image(path, noise(4, 4, seed=1))
    before = path.read_bytes()

    def full(self: Image.Image, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_image(path, noise(4, 4, seed=2))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.png"]
