import pytest
import torch

from driftvq import EMAVQ, NSVQ, VQ, TransVQ, TransVQPaper
from driftvq.functional import kmeans
from driftvq.quantizers.codebook import CodebookQuantizer

STARTED = [VQ, EMAVQ, NSVQ, TransVQ]
STILL = [VQ, TransVQPaper]
"""Those whose stored codes no training step moves by itself."""
every_started = pytest.mark.parametrize("cls", STARTED, ids=lambda cls: cls.__name__)


def batch(seed: int, n: int = 40) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


def make(cls: type[CodebookQuantizer], **options: object) -> CodebookQuantizer:
    torch.manual_seed(0)
    return cls(dim=3, codebook_size=50, kmeans_init=True, **options)


@every_started
def test_gathers_as_many_batches_as_the_codebook_needs(cls: type[CodebookQuantizer]) -> None:
    vq = make(cls)
    for seed in range(2):
        x = batch(seed)
        output = vq(x)
        assert not vq.start.done
        assert torch.allclose(output.quantized, x, atol=1e-6)
    vq.freeze_codebook = True
    vq(batch(9))
    assert len(vq.start.pending) == 80
    vq.freeze_codebook = False
    vq(batch(2))
    assert vq.start.done
    assert len(vq.start.pending) == 0


@pytest.mark.parametrize("cls", [*STARTED, TransVQPaper], ids=lambda cls: cls.__name__)
def test_the_codebook_is_then_the_k_means_of_what_was_gathered(cls: type[CodebookQuantizer]) -> None:
    vq = make(cls)
    for seed in range(3):
        quantized, indices, _ = vq(batch(seed))
    gathered = torch.cat([batch(seed) for seed in range(3)])[:100]
    expected = kmeans(gathered, 50, 10, generator=torch.Generator().manual_seed(0)).codebook
    if cls in STILL:
        assert torch.equal(vq.book.stored, expected)
    if cls is not TransVQPaper:
        torch.testing.assert_close(quantized, expected[indices])


@every_started
def test_never_fires_in_evaluation_or_when_frozen(cls: type[CodebookQuantizer]) -> None:
    vq = make(cls)
    before = vq.codebook.detach().clone()
    vq.eval()
    vq(batch(0, 500))
    vq.train()
    vq.freeze_codebook = True
    vq(batch(0, 500))
    assert not vq.start.done
    assert len(vq.start.pending) == 0
    assert torch.equal(vq.codebook, before)


@every_started
def test_survives_save_and_load_in_the_middle(cls: type[CodebookQuantizer]) -> None:
    vq = make(cls)
    vq(batch(0))
    twin = make(cls)
    twin.load_state_dict(vq.state_dict())
    assert torch.equal(twin.start.pending, vq.start.pending)
    for seed in (1, 2):
        vq(batch(seed))
        twin(batch(seed))
    assert torch.equal(vq.codebook, twin.codebook)
    late = make(cls)
    late.load_state_dict(vq.state_dict())
    assert late.start.done
    before = late.codebook.detach().clone()
    late.freeze_codebook = True
    late(batch(5, 500))
    assert torch.equal(late.codebook, before)


def test_loading_a_started_state_into_a_fresh_module_stops_the_start() -> None:
    vq = make(VQ)
    vq(batch(0, 200))
    twin = make(VQ)
    twin.load_state_dict(vq.state_dict())
    twin(batch(1, 200))
    assert torch.equal(twin.codebook, vq.codebook)


def test_masked_latents_are_not_gathered() -> None:
    vq = make(VQ)
    x = batch(0).reshape(2, 20, 3)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, :7] = True
    vq(x, mask)
    assert torch.equal(vq.start.pending, x[0, :7])


def test_does_not_touch_the_global_random_state() -> None:
    vq = make(VQ)
    torch.manual_seed(3)
    vq(batch(0, 200))
    assert torch.rand(()).item() == torch.rand((), generator=torch.Generator().manual_seed(3)).item()
