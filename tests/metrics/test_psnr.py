import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio

from driftvq.metrics import psnr


@pytest.mark.parametrize(
    ("low", "width", "dtype"), [(0, 255, torch.uint8), (-1, 2, torch.float64), (0, 1, torch.float32)]
)
def test_equals_scikit_image(photos, low, width, dtype):
    x, y = photos(4, 23)
    if dtype != torch.uint8:
        x, y = (image.to(dtype) / 255 * width + low for image in (x, y))
    expected = [peak_signal_noise_ratio(a.numpy(), b.numpy(), data_range=width) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(psnr(x, y, width).numpy(), expected, rtol=1e-6)


def test_the_documented_value_of_torchmetrics():
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])[None, None]
    y = torch.tensor([[3.0, 2.0], [1.0, 0.0]])[None, None]
    assert psnr(x, y, 3.0).item() == pytest.approx(2.5527, abs=5e-5)


def test_bytes_do_not_wrap_around():
    black, white = torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    assert psnr(black, white, 255).item() == psnr(white, black, 255).item() == 0


def test_equal_images_are_infinitely_alike(photos):
    x, y = photos(2, 8)
    y[0] = x[0]
    assert psnr(x, y, 255).isinf().tolist() == [True, False]


def test_half_precision_is_measured_in_single(photos):
    x, y = (image.bfloat16() / 255 for image in photos(2, 16))
    torch.testing.assert_close(psnr(x, y, 1), psnr(x.double(), y.double(), 1).float())


@pytest.mark.parametrize(
    ("dtype", "data_range", "message"),
    [
        (torch.uint8, 1, "data_range of uint8 images must be 255, got 1"),
        (torch.float32, 0, "data_range must be positive, got 0"),
        (torch.float32, float("nan"), "data_range must be positive, got nan"),
        (torch.int64, 255, "uint8 or both of one float type, got torch.int64"),
    ],
)
def test_wrong_ranges_and_types_are_refused(dtype, data_range, message):
    image = torch.zeros(1, 3, 16, 16, dtype=dtype)
    with pytest.raises(ValueError, match=message):
        psnr(image, image, data_range)


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"b c h w of one shape, got \(3, 8, 8\) and \(3, 8, 8\)"):
        psnr(torch.zeros(3, 8, 8), torch.zeros(3, 8, 8), 1)
