import torch
import torch.nn.functional as F

from driftvq import CosineEMAVQ


def test_codes_are_directions_of_moving_sums() -> None:
    torch.manual_seed(0)
    vq = CosineEMAVQ(dim=6, codebook_size=8, decay=0.7, eps=0.0)
    start, size, total = vq.codebook.clone(), torch.ones(8), vq.codebook.clone()
    x = 5 * torch.randn(40, 6)
    unit = F.normalize(x, dim=1)
    quantized, indices, loss = vq(x)
    assert torch.equal(indices, (unit @ start.T).argmax(dim=1))
    assert torch.allclose(loss, 0.25 * (unit - start[indices]).square().mean())
    chosen = F.one_hot(indices, 8).float()
    size, total = 0.7 * size + 0.3 * chosen.sum(dim=0), 0.7 * total + 0.3 * chosen.T @ unit
    assert torch.allclose(vq.codebook, F.normalize(total / size[:, None], dim=1), atol=1e-6)
    assert torch.allclose(quantized.norm(dim=1), torch.ones(40))
