import torch

from driftvq import SFDiVeQ
from driftvq.quantizers.codebooks.base import Match
from driftvq.quantizers.estimators import SpaceFilling


def line(codes: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Distance of each latent to the polyline through the codes."""
    start, way = codes[:-1], codes[1:] - codes[:-1]
    share = ((z[:, None] - start) * way).sum(-1) / way.square().sum(-1)
    return (z[:, None] - (start + share.clamp(0, 1)[..., None] * way)).norm(dim=-1).min(dim=1).values


def test_training_lands_on_the_polyline_and_evaluation_on_codes() -> None:
    torch.manual_seed(0)
    vq = SFDiVeQ(dim=3, codebook_size=16, variance=0.0, kmeans_init=False)
    vq.set_codebook_(torch.randn(16, 3))
    z = torch.randn(200, 3)
    quantized, indices, loss = vq(z)
    assert line(vq.codebook.detach(), quantized.detach()).max() < 1e-5
    assert (quantized - vq.codebook[indices]).norm(dim=1).median() > 0.05
    assert loss.item() == 0
    quantized, indices, _ = vq.eval()(z)
    assert torch.equal(quantized, vq.indices_to_codes(indices))
    assert torch.equal(indices, torch.cdist(z, vq.codebook).argmin(dim=1))


def test_takes_the_nearest_of_one_point_per_segment_and_trains_both_ends() -> None:
    codes = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    z = torch.randn(1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    share = torch.rand(5, 1, dtype=torch.float64)
    torch.manual_seed(2)
    winners = torch.cdist(z, codes.detach()).argmin(dim=1)
    indices, output = SpaceFilling(variance=0.0)(z, codes, Match(winners, codes[winners]))
    points = ((1 - share) * codes[:-1] + share * codes[1:]).detach()
    chosen = int(torch.cdist(z, points).argmin())
    torch.testing.assert_close(output.detach()[0], points[chosen])
    assert torch.equal(indices, winners)
    output.sum().backward()
    assert codes.grad is not None
    touched = codes.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert touched == [chosen, chosen + 1]


def test_the_last_code_alone_is_no_segment_but_a_single_code_is() -> None:
    codes = torch.tensor([[0.0], [1.0]])
    z = torch.tensor([[0.0], [1.0]])
    _, output = SpaceFilling(variance=0.0)(z, codes, Match(torch.tensor([0, 1]), codes))
    torch.testing.assert_close(output[0], output[1])
    _, output = SpaceFilling(variance=0.0)(z, codes[:1], Match(torch.tensor([0, 0]), codes[[0, 0]]))
    torch.testing.assert_close(output, torch.zeros(2, 1))
