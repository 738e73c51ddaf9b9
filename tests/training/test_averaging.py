import numpy as np
import torch
from torch import nn

from driftvq import make_quantizer
from driftvq.training.averaging import WeightAverage


def model():
    net = nn.BatchNorm1d(3)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return net


def test_the_average_follows_its_recursion_from_the_first_update_on():
    net = model()
    average = WeightAverage(net, 0.7)
    with torch.no_grad():
        net.weight.mul_(5)  # what there was before the first update does not count
    average.update_parameters(net)
    expected = net.weight.detach().numpy().copy()
    for step in range(1, 30):
        with torch.no_grad():
            net.weight.add_(torch.tensor([0.1, -0.2, 0.3]))
        average.update_parameters(net)
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * net.weight.detach().numpy()
    np.testing.assert_allclose(average.module.weight.detach().numpy(), expected, rtol=1e-5)


def test_buffers_are_averaged_and_counts_are_taken_as_they_are():
    net = model()
    average = WeightAverage(net, 0.9)
    average.update_parameters(net)
    net.running_mean += 1
    net.num_batches_tracked += 7
    average.update_parameters(net)
    np.testing.assert_allclose(average.module.running_mean.numpy(), 1 - 2 / 11, rtol=1e-6)
    assert average.module.num_batches_tracked == 7


def test_the_model_keeps_its_own_weights():
    net = model()
    average = WeightAverage(net, 0.9)
    own = net.weight.detach().clone()
    for _ in range(3):
        average.update_parameters(net)
    assert torch.equal(net.weight, own)
    assert average.module.weight is not net.weight


def test_continues_from_its_state():
    net = model()
    first, second = WeightAverage(net, 0.9), WeightAverage(net, 0.9)
    for factor in (2, 3, 4):
        with torch.no_grad():
            net.weight.mul_(factor)
        first.update_parameters(net)
    second.load_state_dict(first.state_dict())
    for average in (first, second):
        average.update_parameters(net)
    assert second.n_averaged == 4
    assert torch.equal(second.module.weight, first.module.weight)


def test_a_codebook_whose_start_is_under_way_is_taken_as_it_is():
    quantizer = make_quantizer("ema_vq", dim=2, codebook_size=8, kmeans_init=True)
    average = WeightAverage(quantizer, 0.9)
    for seed in range(3):
        quantizer(torch.randn(6, 2, generator=torch.Generator().manual_seed(seed)))
        average.update_parameters(quantizer)
        assert torch.equal(average.module.start.pending, quantizer.start.pending)
    assert quantizer.start.done
    assert average.module.start.done
