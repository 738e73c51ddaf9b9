import numpy as np
import torch
from torch import nn

from driftvq.training.averaging import WeightAverage


def model():
    net = nn.BatchNorm1d(3)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return net


def test_the_average_follows_its_recursion():
    net = model()
    average = WeightAverage(net, 0.7)
    expected = net.weight.detach().numpy().copy()
    for step in range(1, 30):
        with torch.no_grad():
            net.weight.add_(torch.tensor([0.1, -0.2, 0.3]))
        average.update_(net)
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * net.weight.detach().numpy()
    np.testing.assert_allclose(average.average["weight"].numpy(), expected, rtol=1e-5)


def test_buffers_are_averaged_and_counts_are_not():
    average = WeightAverage(model(), 0.9)
    assert "running_mean" in average.average
    assert "num_batches_tracked" not in average.average


def test_a_models_own_weights_come_back_bit_for_bit():
    net = model()
    average = WeightAverage(net, 0.9)
    with torch.no_grad():
        net.weight.mul_(1 / 3)
    own = net.weight.detach().clone()
    with average.in_place_of(net):
        assert net.weight.tolist() == [1.0, 2.0, 3.0]
    assert torch.equal(net.weight, own)


def test_continues_from_its_state():
    net = model()
    first, second = WeightAverage(net, 0.9), WeightAverage(net, 0.9)
    with torch.no_grad():
        net.weight.mul_(2)
    first.update_(net)
    second.load_state_dict(first.state_dict())
    assert second.updates == 1
    assert torch.equal(second.average["weight"], first.average["weight"])


def test_a_buffer_that_changes_its_size_is_taken_as_it_is():
    net = model()
    average = WeightAverage(net, 0.9)
    net.running_mean = torch.arange(5.0)
    average.update_(net)
    with average.in_place_of(net):
        assert net.running_mean.tolist() == [0, 1, 2, 3, 4]
