import numpy as np
import pytest
import torch
from torch import nn

from driftvq.metrics import LPIPS
from driftvq.metrics.lpips import BACKBONES
from driftvq.metrics.weights import read_arrays
from tests.metrics.conftest import need_weights


@pytest.fixture(scope="module")
def alex():
    need_weights("alex")
    return LPIPS("alex", (0, 255))


@pytest.fixture(scope="module")
def vgg():
    need_weights("vgg")
    return LPIPS("vgg", (0, 255))


def convolve(x, kernel, bias, stride, padding):
    """One image ``h w c`` by a kernel ``h w in out``, in NumPy."""
    x = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(0, 1))[::stride, ::stride]
    return np.maximum(np.einsum("hwcij,ijco->hwo", windows, kernel, optimize=True) + bias, 0)


def pool(x, size):
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(0, 1))[::2, ::2].max((-1, -2))


def layers_by_numpy(image, net):
    """The compared layers, straight from the papers' tables; ``image`` is ``h w 3`` in [-1, 1]."""
    arrays = read_arrays(net)
    shift, scale = np.array([[-0.030, -0.088, -0.188], [0.458, 0.448, 0.450]], np.float32).astype(float)
    x = (image - shift) / scale
    if net == "alex":
        plan = [("c", 4, 2), "t", 3, ("c", 1, 2), "t", 3, ("c", 1, 1), "t", ("c", 1, 1), "t", ("c", 1, 1), "t"]
    else:
        c = ("c", 1, 1)
        plan = [c, c, "t", 2, c, c, "t", 2, c, c, c, "t", 2, c, c, c, "t", 2, c, c, c, "t"]
    convs, found = iter(range(13)), []
    scope = arrays["AlexNet_0" if net == "alex" else "VGG16_0"]
    for step in plan:
        if step == "t":
            found.append(x)
        elif isinstance(step, int):
            x = pool(x, step)
        else:
            conv = scope[f"Conv_{next(convs)}"]
            x = convolve(x, conv["kernel"].astype(float), conv["bias"].astype(float), *step[1:])
    heads = [arrays[f"NetLinLayer_{number}"]["Conv_0"]["kernel"][0, 0, :, 0].astype(float) for number in range(5)]
    return found, heads


@pytest.mark.parametrize(("net", "size"), [("alex", (35, 47)), ("vgg", (17, 32))])
def test_layers_and_distance_equal_a_reading_in_numpy(net, size):
    need_weights(net)
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (2, *size, 3))
    module = LPIPS(net, (-1, 1)).double()
    images = [torch.from_numpy(image).permute(2, 0, 1)[None] for image in (x, y)]
    (layers_x, heads), (layers_y, _) = layers_by_numpy(x, net), layers_by_numpy(y, net)
    for ours, theirs in zip(module.features(images[0]), layers_x, strict=True):
        np.testing.assert_allclose(ours[0].permute(1, 2, 0).numpy(), theirs, rtol=1e-9, atol=1e-9)
    expected = 0.0
    for fx, fy, head in zip(layers_x, layers_y, heads, strict=True):
        fx, fy = (f / (np.linalg.norm(f, axis=-1, keepdims=True) + 1e-10) for f in (fx, fy))
        expected += ((fx - fy) ** 2 @ head).mean()
    assert module(*images).item() == pytest.approx(expected, rel=1e-8)


def test_the_authors_triple(alex, shared_data):
    from PIL import Image

    def load(name):
        pixels = np.array(Image.open(shared_data / "lpips" / f"{name}.png").convert("RGB"))
        return torch.from_numpy(pixels).permute(2, 0, 1)[None]

    reference = load("ex_ref")
    assert alex(reference, load("ex_p0")).item() == pytest.approx(0.722, abs=5e-4)
    assert alex(reference, load("ex_p1")).item() == pytest.approx(0.138, abs=5e-4)


@pytest.mark.parametrize("net", BACKBONES)
def test_gradient_equals_finite_differences(net):
    need_weights(net)
    module = LPIPS(net, (0, 1)).double()
    generator = torch.Generator().manual_seed(0)
    size = BACKBONES[net].least_size
    x, y, *directions = torch.rand(5, 1, 3, size, size, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    y.requires_grad_()
    module(x, y).sum().backward()
    for direction in directions:
        for argument, gradient in ((0, x.grad), (1, y.grad)):
            step = 1e-7 * (direction - 0.5)
            moved = [[x.detach(), y.detach()] for _ in range(2)]
            moved[0][argument] = moved[0][argument] + step
            moved[1][argument] = moved[1][argument] - step
            difference = (module(*moved[0]) - module(*moved[1])).item() / 2
            assert difference == pytest.approx((gradient * step).sum().item(), rel=1e-3)


def test_ranges_are_the_same_images(alex, photos):
    x, y = photos(3, 40)
    expected = alex(x, y)
    assert expected.shape == (3,)
    signed = LPIPS("alex")
    torch.testing.assert_close(signed(x / 127.5 - 1, y / 127.5 - 1), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(LPIPS("alex", (0, 1))(x / 255, y / 255), expected, rtol=1e-4, atol=1e-6)


def test_equal_images_have_distance_0_and_a_finite_gradient(alex, vgg):
    for module in (alex, vgg):
        black = torch.zeros(1, 3, 32, 32, requires_grad=True)
        distance = module(black, torch.zeros(1, 3, 32, 32))
        distance.sum().backward()
        assert distance.item() == 0
        assert black.grad.isfinite().all()


def test_it_is_frozen_and_leaves_no_trace_in_checkpoints(alex):
    assert not any(parameter.requires_grad for parameter in alex.parameters())
    model = nn.ModuleDict({"layer": nn.Linear(2, 2), "loss": alex})
    assert set(model.state_dict()) == {"layer.weight", "layer.bias"}
    before = [parameter.clone() for parameter in alex.parameters()]
    model.load_state_dict(model.state_dict(), strict=True)
    assert all(torch.equal(old, new) for old, new in zip(before, alex.parameters(), strict=True))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(1, 1, 64, 64), torch.zeros(1, 1, 64, 64), r"3 channels \(RGB\), got 1"),
        (torch.zeros(1, 3, 64, 64), torch.zeros(2, 3, 64, 64), "one shape, got"),
        (torch.zeros(1, 3, 64, 64), torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "uint8 or both of one float type"),
        (torch.zeros(1, 3, 64, 30), torch.zeros(1, 3, 64, 30), "at least 31×31 pixels, got 64×30"),
    ],
)
def test_wrong_images_are_refused(alex, x, y, message):
    with pytest.raises(ValueError, match=message):
        alex(x, y)


def test_wrong_arguments_are_refused(alex):
    with pytest.raises(ValueError, match="unknown LPIPS network 'vgg16'; known, nearest first: vgg, alex"):
        LPIPS("vgg16")
    with pytest.raises(ValueError, match=r"value_range must be \(lowest, highest\), got \(1, -1\)"):
        LPIPS("alex", (1, -1))
    bytes_ = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"value_range of uint8 images must be \(0, 255\), got \(-1.0, 1.0\)"):
        LPIPS("alex")(bytes_, bytes_)
