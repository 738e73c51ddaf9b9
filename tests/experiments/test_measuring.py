import numpy as np
import pytest
import torch

from driftvq.experiments.measuring import CodeCounts, describe_codes, flattened
from driftvq.models import VQVAE, ModelConfig

IMAGES = torch.rand(2, 3, 16, 16) * 2 - 1


def test_counts_pass_the_pairs_on():
    counts = CodeCounts(4)
    pairs = [(IMAGES, IMAGES, torch.tensor([[0, 3], [3, 3]])), (IMAGES, IMAGES, None)]
    assert list(counts.watch(pairs)) == pairs
    assert counts.counts.tolist() == [1, 0, 0, 3]


def test_the_map_is_the_first_two_principal_components():
    points = torch.randn(50, 5) @ torch.diag(torch.tensor([0.1, 5.0, 0.2, 2.0, 0.1]))
    centred = (points - points.mean(dim=0)).double().numpy()
    _, _, axes = np.linalg.svd(centred)
    expected = np.abs(centred @ axes[:2].T)
    assert np.allclose(np.abs(flattened(points).numpy()), expected, atol=1e-3 * expected.max())


@pytest.mark.parametrize("quantizer", ["vq", "factorized_vq", "trans_vq", "fsq", "ema_vq"])
def test_codes_and_latents_are_shown_where_they_are_compared(quantizer):
    model = VQVAE(ModelConfig(quantizer=quantizer, codebook_size=64, code_dim=12)).eval()
    codes = describe_codes(model, torch.arange(64), [IMAGES])
    assert codes["counts"] == list(range(64))
    assert codes["point_codes"] == list(range(64))
    assert len(codes["points"]) == 64
    assert len(codes["latents"]) == (0 if quantizer == "fsq" else 32)


def test_large_codebooks_are_thinned_evenly():
    model = VQVAE(ModelConfig(quantizer="vq", codebook_size=5000, code_dim=1)).eval()
    codes = describe_codes(model, torch.zeros(5000, dtype=torch.int64), [IMAGES])
    assert len(codes["points"]) == 2000
    assert (codes["point_codes"][0], codes["point_codes"][-1]) == (0, 4999)
    assert all(y == 0 for _, y in codes["points"])
