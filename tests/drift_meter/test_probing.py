import pytest
import torch
from torch import nn

from driftvq import VQ, ResidualVQ
from driftvq.drift_meter.probing import codebook_of, modules_of, parts_of, pending_starts, rows, undisturbed


@pytest.mark.parametrize(
    ("shape", "channel_first"), [((2, 5, 8), None), ((2, 8, 3, 5), None), ((2, 8, 8), True), ((4, 8), None)]
)
def test_rows_are_the_positions(shape, channel_first):
    latents = torch.randn(shape)
    last = latents if latents.shape[-1] == 8 and not channel_first else latents.movedim(1, -1)
    assert torch.equal(rows(latents, 8, channel_first), last.reshape(-1, 8))


def test_a_layout_that_cannot_be_told_is_asked_for():
    with pytest.raises(ValueError, match=r"may be \(…, d\) or \(b, d, …\): pass channel_first"):
        rows(torch.randn(2, 8, 3, 8), 8, None)
    with pytest.raises(ValueError, match=r"must give latents of shape \(…, 8\) or \(b, 8, …\), got \(2, 7\)"):
        rows(torch.randn(2, 7), 8, None)


def test_modes_and_random_numbers_come_back():
    module = nn.Sequential(nn.Dropout(), nn.Linear(2, 2).eval())
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with undisturbed([module]):
        assert not module[0].training
        assert not torch.is_grad_enabled()
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected)
    assert [part.training for part in module.modules()] == [True, True, False]


def test_modules_are_found_in_functions_and_methods():
    layer = nn.Linear(2, 2)
    assert modules_of(layer) == modules_of(layer.forward) == modules_of(lambda x: layer(x)) == [layer]
    assert modules_of(torch.relu) == []


def test_parts_and_their_starts_are_listed_once():
    vq = ResidualVQ(dim=4, codebook_size=8, num_quantizers=3, quantizer="vq", kmeans_init=True)
    assert len(parts_of(vq)) == len(pending_starts(vq)) == 3
    assert pending_starts(VQ(4, 8, kmeans_init=False)) == parts_of(nn.Linear(1, 1)) == []


def test_a_codebook_is_one_table():
    codes = torch.randn(1, 8, 4)
    assert torch.equal(codebook_of(None, lambda: codes), codes[0])
    with pytest.raises(ValueError, match=r"must have shape \(k, d\), got \(2, 8, 4\): of several, pass one"):
        codebook_of(None, torch.randn(2, 8, 4))
