import pytest
import torch

from driftvq import NSVQ, VQ, GroupedVQ, ResidualVQ


def test_each_group_is_quantised_by_itself() -> None:
    torch.manual_seed(0)
    vq = GroupedVQ(dim=6, codebook_size=16, groups=3, quantizer="vq").eval()
    x = torch.randn(2, 5, 6)
    quantized, indices, loss = vq(x)
    parts = [vq.part(group)(x[..., 2 * group : 2 * group + 2]) for group in range(3)]
    assert torch.equal(quantized, torch.cat([part.quantized for part in parts], dim=-1))
    assert torch.equal(indices, torch.stack([part.indices for part in parts], dim=-1))
    assert loss.item() == pytest.approx(sum(part.loss.item() for part in parts) / 3)


def test_a_shared_codebook_serves_all_groups_in_one_step() -> None:
    torch.manual_seed(0)
    vq = GroupedVQ(dim=6, codebook_size=16, groups=3, quantizer="vq", shared_codebook=True)
    x = torch.randn(4, 6)
    quantized, indices, _ = vq(x)
    assert vq.part(2) is vq.part(0)
    assert vq.part(0).step == 1
    for group in range(3):
        expected = VQ.__call__(vq.part(0).eval(), x[:, 2 * group : 2 * group + 2])
        assert torch.equal(indices[:, group], expected.indices)
        assert torch.equal(quantized[:, 2 * group : 2 * group + 2], expected.quantized)


def test_refuses_groups_that_do_not_divide_the_dimension() -> None:
    with pytest.raises(ValueError, match="groups must divide the dimension 6, got 4"):
        GroupedVQ(dim=6, codebook_size=16, groups=4)


@pytest.mark.parametrize("shared", [False, True])
def test_composites_in_composites_decode(shared: bool) -> None:
    torch.manual_seed(0)
    options = {"quantizer": "residual_vq", "num_quantizers": 3, "shared_codebook": shared}
    grouped = GroupedVQ(12, 16, groups=2, **options)
    residual = ResidualVQ(12, 16, quantizer="grouped_vq", num_quantizers=3, groups=2, shared_codebook=shared)
    for vq in (grouped, residual):
        for seed in range(4):
            vq(torch.randn(4, 9, 12, generator=torch.Generator().manual_seed(seed)))
        vq.eval()
        quantized, indices, _ = vq(torch.randn(4, 9, 12))
        assert indices.shape == (4, 9, 6)
        assert torch.equal(vq.indices_to_codes(indices), quantized)
        assert {int(part.step) for part in vq.modules() if isinstance(part, NSVQ)} == {4}
    first, second = (grouped.part(group) for group in range(2))
    x = torch.randn(4, 9, 12)
    quantized, indices, _ = grouped(x)
    assert torch.equal(indices.unflatten(-1, (2, 3))[..., 1, :], second(x[..., 6:]).indices)
    assert torch.equal(quantized[..., :6], first(x[..., :6]).quantized)
    assert grouped.get_codes_from_indices(indices).shape == (2, 3, 4, 9, 6)
