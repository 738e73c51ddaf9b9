import pytest
import torch
from torch import nn

from driftvq import TransVQPaper
from driftvq.quantizers.transformed_vq import TransformedCodes


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_evaluation_after_a_fused_step_shows_the_new_codes(optimizer: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    vq = TransVQPaper(dim=6, codebook_size=32, width=16, kmeans_init=False)
    fused = optimizer(vq.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        before = vq.eval().codebook
        vq.train()(torch.randn(8, 6)).loss.backward()
        fused.step()
        after = vq.eval().codebook
        assert not torch.allclose(after, before, atol=1e-3)
        assert torch.equal(after, vq.book.transform(vq.book.base))


def test_codes_are_the_transformed_base() -> None:
    book = TransformedCodes(20, 4, nn.Linear(4, 4))
    assert torch.equal(book(), book.transform(book.base))
    book.set_(torch.ones(20, 4))
    assert torch.equal(book.eval()(), book.transform(torch.ones(20, 4)))


def test_settled_codes_are_as_given_until_others_are_set() -> None:
    book = TransformedCodes(20, 4, nn.Linear(4, 4))
    book.settle_(torch.ones(20, 4))
    assert torch.equal(book.eval()(), torch.ones(20, 4))
    book.set_(torch.ones(20, 4))
    assert torch.equal(book(), book.transform(torch.ones(20, 4)))
