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


@pytest.mark.parametrize("shared", [False, True])
def test_fewer_levels_in_each_group(shared: bool) -> None:
    torch.manual_seed(0)
    options = {"quantizer": "residual_vq", "groups": 2, "num_quantizers": 3, "shared_codebook": shared}
    vq, x = GroupedVQ(8, 16, **options), torch.randn(2, 30, 8)
    for _ in range(4):
        vq(x)
    assert vq(x, levels=2).indices.shape == (2, 30, 4)
    vq.eval()
    whole, coarse = vq(x), vq(x, levels=2)
    assert torch.equal(coarse.indices, whole.indices.unflatten(-1, (2, 3))[..., :2].flatten(-2))
    assert torch.equal(vq.indices_to_codes(coarse.indices), coarse.quantized)
    assert (whole.quantized - x).square().mean() < (coarse.quantized - x).square().mean()
    assert len(vq.details(x, levels=1).parts[0].parts) == 1
    with pytest.raises(ValueError, match="levels must lie between 1 and 3, got 4"):
        vq(x, levels=4)
    with pytest.raises(ValueError, match=r"of 2 groups, in each: .* for 1 to 3 levels"):
        vq.indices_to_codes(torch.zeros(2, 30, 8, dtype=torch.int64))
    with pytest.raises(ValueError, match="VQ has no levels, got levels=2"):
        GroupedVQ(8, 16, quantizer="vq")(x, levels=2)


def test_sizes_of_fewer_levels_are_those_of_each_group() -> None:
    options = {"quantizer": "residual_vq", "groups": 2, "num_quantizers": 2}
    vq = GroupedVQ(8, (16, 4), **options)
    with pytest.raises(ValueError, match=r"less than \(16, 4\) at their places, got 4"):
        vq.indices_to_codes(torch.tensor([[15, 4]]))


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_groups_that_share_projections_come_back_exactly(n: int) -> None:
    """A product of one row is not rounded as one of three is."""
    torch.manual_seed(0)
    vq = GroupedVQ(
        dim=24, codebook_size=64, codebook_dim=48, groups=3, quantizer="factorized_vq", shared_codebook=True
    ).eval()
    quantized, indices, _ = vq(torch.randn(n, 24))
    assert torch.equal(vq.indices_to_codes(indices), quantized)
