import pytest
import torch
from torch import nn

from step_cost import SavedValues, StepCost, main, step_cost


def conv_flops(size_out, kernel, channels_in, channels_out):
    return 2 * size_out**2 * kernel**2 * channels_in * channels_out


def test_the_papers_network_by_hand():
    """Forward as in Tab. 1; backward twice as much, but for the first convolution, whose input needs no gradient."""
    size, dim, batch = 64, 16, 2
    half, grid = size // 2, size // 4
    first = conv_flops(half, 4, 3, 128)
    others = [
        conv_flops(grid, 4, 128, 256),
        conv_flops(grid, 3, 256, 256),
        12 * (conv_flops(grid, 3, 256, 256) + conv_flops(grid, 1, 256, 256)),
        conv_flops(grid, 1, 256, dim),
        conv_flops(grid, 3, dim, 256),
        conv_flops(grid, 4, 256, 128),  # a transposed convolution spreads each of its inputs
        conv_flops(half, 4, 128, 3),
    ]
    cost = step_cost("paper", size, batch, 1024, dim)
    assert cost.network_flops == batch * (2 * first + 3 * sum(others))
    assert cost.latents == batch * grid**2
    assert cost.search_flops == 2 * cost.latents * 1024 * dim


def test_what_autograd_keeps_is_counted_once_and_without_weights():
    layer = nn.Linear(4, 4, bias=False)
    x = torch.ones(3, 4, requires_grad=True)
    saved = SavedValues(layer)
    with saved:
        y = layer(x)
        (y * y).sum().backward()  # keeps x, and y only once
    assert saved.values == 12 + 12


def test_memory_and_time():
    cost = StepCost(network_flops=900, search_flops=100, latents=5, parameters=10, saved_values=1000)
    assert cost.memory("32-true") == 160 + 4000
    assert cost.memory("bf16-mixed") == 160 + 2000
    assert cost.seconds(500) == 2


def test_prints_a_table(capsys):
    main(["--network", "small", "--size", "64", "--teraflops", "1"])
    assert "sustained TFLOP/s" in capsys.readouterr().out
    with pytest.raises(ValueError, match="unknown network"):
        main(["--network", "papper"])
