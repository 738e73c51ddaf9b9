import numpy as np
import torch

from driftvq import FactorizedVQ


def test_selects_by_cosine_in_the_projected_space() -> None:
    torch.manual_seed(0)
    vq = FactorizedVQ(dim=32, codebook_size=64).double().eval()
    x = torch.randn(300, 32, dtype=torch.float64)
    z = vq.project_in(x).detach().numpy()
    codes = vq.book.codes.detach().numpy()
    cosine = (z @ codes.T) / np.linalg.norm(z, axis=1)[:, None] / np.linalg.norm(codes, axis=1)
    np.testing.assert_array_equal(vq(x).indices, cosine.argmax(axis=1))


def test_codes_have_unit_length_and_few_dimensions() -> None:
    vq = FactorizedVQ(dim=32, codebook_size=64)
    assert vq.codebook.shape == (64, 8)
    assert torch.allclose(vq.codebook.norm(dim=1), torch.ones(64))
    assert FactorizedVQ(dim=3, codebook_size=64).codebook.shape == (64, 3)


def test_scale_of_the_latents_does_not_matter() -> None:
    torch.manual_seed(0)
    vq = FactorizedVQ(dim=8, codebook_size=64, codebook_dim=8).eval()
    x = torch.randn(50, 8)
    assert torch.equal(vq(x).indices, vq(1e3 * x).indices)
    assert torch.allclose(vq(x).loss, vq(1e3 * x).loss)


def test_output_is_the_projected_unit_code() -> None:
    torch.manual_seed(0)
    vq = FactorizedVQ(dim=32, codebook_size=64).eval()
    quantized, indices, _ = vq(torch.randn(20, 32))
    assert torch.allclose(quantized, vq.project_out(vq.codebook[indices]))
    assert torch.allclose(vq.get_codes_from_indices(indices), vq.codebook[indices])
