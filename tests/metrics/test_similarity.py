import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch.nn.functional import avg_pool2d
from torchmetrics.functional.image import structural_similarity_index_measure

from driftvq.metrics import ms_ssim, psnr, ssim
from driftvq.metrics.similarity import MS_SSIM_LEAST_SIZE


@pytest.mark.parametrize(
    ("low", "width", "dtype"), [(0, 255, torch.uint8), (-1, 2, torch.float64), (0, 1, torch.float32)]
)
def test_psnr_equals_scikit_image(photos, low, width, dtype):
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


def by_scikit_image(x, y, width):
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "channel_axis": 0}
    return [
        structural_similarity(a.numpy().astype(float), b.numpy().astype(float), data_range=width, **options)
        for a, b in zip(x, y, strict=True)
    ]


def by_torchmetrics(x, y):
    """Without the windows over the mirrored border, which torchmetrics counts in."""
    _, similarity = structural_similarity_index_measure(
        x, y, data_range=255.0, reduction="none", return_full_image=True
    )
    return similarity[..., 5:-5, 5:-5].mean((1, 2, 3))


@pytest.mark.parametrize(("low", "width"), [(0, 255), (-1, 2), (0, 1), (100, 10)])
@pytest.mark.parametrize("noise", [1.0, 60.0])
def test_ssim_equals_scikit_image(photos, low, width, noise):
    x, y = (image.double() / 255 * width + low for image in photos(3, 33, noise))
    np.testing.assert_allclose(ssim(x, y, width).numpy(), by_scikit_image(x, y, width), rtol=1e-9)


def test_bytes_equal_scikit_image(photos):
    x, y = photos(3, 64)
    np.testing.assert_allclose(ssim(x, y, 255).numpy(), by_scikit_image(x, y, 255), rtol=2e-5)


def test_equals_torchmetrics(photos):
    x, y = (image[:, :, :40].float() for image in photos(2, 64))
    torch.testing.assert_close(ssim(x, y, 255), by_torchmetrics(x, y), rtol=1e-4, atol=1e-5)


def test_ms_ssim_is_made_of_torchmetrics_scales(photos):
    x, y = (image.double() for image in photos(1, 179, noise=40))
    expected, a, b = torch.ones(1, dtype=torch.float64), x, y
    for weight in (0.0448, 0.2856, 0.3001, 0.2363):
        _, contrast = structural_similarity_index_measure(
            a, b, data_range=255.0, reduction="none", return_contrast_sensitivity=True
        )
        expected *= contrast**weight
        a, b = avg_pool2d(a, 2), avg_pool2d(b, 2)
    torch.testing.assert_close(ms_ssim(x, y, 255), expected * by_torchmetrics(a, b) ** 0.1333, rtol=1e-9, atol=0)


def test_the_documented_values_of_torchmetrics():
    x = torch.rand([3, 3, 256, 256], generator=torch.Generator().manual_seed(42))
    y = x * 0.75
    assert ssim(x, y, float(x.max() - y.min())).mean().item() == pytest.approx(0.9219, abs=2e-4)
    assert ms_ssim(x, y, 1.0).mean().item() == pytest.approx(0.9628, abs=2e-4)


def test_equal_images_have_similarity_1(photos):
    x, _ = photos(2, MS_SSIM_LEAST_SIZE)
    torch.testing.assert_close(ssim(x, x, 255), torch.ones(2))
    torch.testing.assert_close(ms_ssim(x, x, 255), torch.ones(2))


def test_flat_images_keep_their_digits():
    x = torch.full((1, 3, 16, 16), 250, dtype=torch.uint8)
    y = x.clone()
    y[:, :, 8, 8] += 1
    assert ssim(x, y, 255).item() == pytest.approx(by_scikit_image(x, y, 255)[0], abs=1e-6)


def test_it_is_differentiable():
    x, y = torch.rand(2, 1, 1, 12, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(lambda a: ssim(a, y, 1.0), x.requires_grad_())


def test_small_images_are_refused():
    x = torch.zeros(1, 3, 64, 10)
    with pytest.raises(ValueError, match="SSIM needs images of at least 11×11 pixels, got 64×10"):
        ssim(x, x, 1)
    x = torch.zeros(1, 3, 175, 200)
    with pytest.raises(ValueError, match="five scales, needs images of at least 176×176 pixels, got 175×200"):
        ms_ssim(x, x, 1)


@pytest.mark.parametrize("measure", [ssim, ms_ssim])
def test_wrong_ranges_are_refused(measure):
    x = torch.zeros(1, 3, 200, 200, dtype=torch.uint8)
    with pytest.raises(ValueError, match="data_range of uint8 images must be 255, got 1"):
        measure(x, x, 1)
    with pytest.raises(ValueError, match="data_range must be positive, got -1"):
        measure(x.float(), x.float(), -1)
