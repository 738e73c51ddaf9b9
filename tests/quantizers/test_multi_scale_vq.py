import pytest
import torch
import torch.nn.functional as F

from driftvq import GroupedVQ, MultiScaleVQ, make_quantizer


def trained(shape: tuple[int, ...] = (4, 6, 8, 8), **options: object) -> MultiScaleVQ:
    torch.manual_seed(0)
    vq = MultiScaleVQ(**{"dim": 6, "codebook_size": 16, "quantizer": "vq", "channel_first": True, **options})
    for _ in range(3):
        vq(torch.randn(shape))
    return vq.eval()


@pytest.mark.parametrize("shared", [True, False])
def test_levels_are_means_of_cells_and_what_they_leave(shared: bool) -> None:
    vq = trained(scales=(1, 4), shared_codebook=shared, kmeans_init=True)
    x = torch.randn(2, 6, 8, 8)
    quantized, indices, loss = vq(x)
    residual, total, losses = x, torch.zeros_like(x), torch.zeros(())
    for level, cells in enumerate((1, 4, 8)):
        small = F.adaptive_avg_pool2d(residual, cells)
        codebook = vq.part(level).codebook
        flat = small.movedim(1, -1).reshape(-1, 6)
        chosen = torch.cdist(flat, codebook).argmin(dim=1)
        codes = codebook[chosen]
        losses = losses + 1.25 * (flat - codes).square().mean()
        spread = F.interpolate(codes.reshape(2, cells, cells, 6).movedim(-1, 1), size=(8, 8), mode="bilinear")
        residual, total = residual - spread, total + spread
        assert torch.equal(vq.tokens(indices)[level], chosen.reshape(2, cells, cells))
    assert torch.allclose(quantized, total, atol=1e-5)
    assert torch.allclose(loss, losses, rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 6, 8, 8), (2, 6, 5), (2, 6, 3, 4, 5), (7, 6)])
def test_tokens_and_indices_say_the_same(shape: tuple[int, ...]) -> None:
    vq = trained(shape)
    quantized, indices, _ = vq(torch.randn(shape))
    tokens = vq.tokens(indices)
    again = vq.indices_of_tokens(tokens, shape[2:])
    assert torch.equal(again, indices)
    assert torch.equal(vq.indices_to_codes(again), quantized)
    assert [level.indices.shape for level in vq.details(torch.randn(shape)).parts] == [level.shape for level in tokens]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("outer", ["grouped_vq", "residual_vq", "multi_scale_vq"])
def test_decodes_inside_another_quantizer(outer: str, shared: bool) -> None:
    torch.manual_seed(0)
    vq = make_quantizer(
        outer, dim=8, codebook_size=16, quantizer="multi_scale_vq", shared_codebook=shared, channel_first=True
    )
    x, mask = torch.randn(2, 8, 8, 8), torch.rand(2, 8, 8) < 0.7
    for _ in range(3):
        vq(x, mask)
    quantized, indices, _ = vq.eval()(x, mask)
    assert torch.equal(vq.indices_to_codes(indices), quantized)
    if isinstance(vq, GroupedVQ):
        for group, own in enumerate(x.movedim(1, -1).chunk(2, dim=-1)):
            expected = vq.part(group)(own, mask)
            assert torch.equal(quantized.movedim(1, -1).chunk(2, dim=-1)[group], expected.quantized)
            assert torch.equal(indices.chunk(2, dim=-1)[group], expected.indices)


@pytest.mark.parametrize("inner", ["grouped_vq", "residual_vq", "multi_scale_vq"])
def test_tokens_of_a_composite_have_all_its_indices(inner: str) -> None:
    vq = trained(quantizer=inner)
    indices = vq(torch.randn(2, 6, 8, 8)).indices
    tokens = vq.tokens(indices)
    assert [level.shape for level in tokens] == [(2, n, n, vq.part(0).indices_per_position) for n in (1, 2, 4, 8)]
    assert torch.equal(vq.indices_of_tokens(tokens, (8, 8)), indices)


def test_coarse_levels_decode_without_the_fine_ones() -> None:
    vq = trained()
    quantized, indices, _ = vq(torch.randn(2, 6, 8, 8), levels=2)
    assert indices.shape == (2, 8, 8, 2)
    assert torch.equal(vq.indices_to_codes(indices), quantized)
    assert vq.get_codes_from_indices(indices).shape == (2, 2, 8, 8, 6)


def test_masked_positions_count_in_no_cell() -> None:
    vq = trained((4, 6, 8))
    x, mask = torch.randn(2, 6, 8), torch.ones(2, 8, dtype=torch.bool)
    mask[1, 4:] = False
    quantized, indices, _ = vq(x, mask)
    mean = x[1, :, :4].mean(dim=1)
    assert indices[1, 0, 0] == torch.cdist(mean[None], vq.part(0).codebook).argmin()
    assert torch.equal(vq.indices_to_codes(indices), quantized)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scales": (2, 1)}, r"scales must become finer, got \(2, 1\)"),
        ({"scales": (0,)}, "scales must be a whole number of at least 1, got 0"),
        ({"beam_size": 2}, "MultiScaleVQ searches no beams: beam_size must be 1, got 2"),
    ],
)
def test_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiScaleVQ(6, 16, **options)


def test_refuses_tokens_of_another_grid() -> None:
    vq = trained()
    tokens = vq.tokens(vq(torch.randn(2, 6, 8, 8)).indices)
    with pytest.raises(ValueError, match=r"level 1 must have tokens of shape \(2, 2, 2\), got \(2, 4, 4\)"):
        vq.indices_of_tokens([tokens[0], tokens[2]], (8, 8))
    with pytest.raises(ValueError, match="tokens must be of 1 to 4 levels, got 5"):
        vq.indices_of_tokens([*tokens, tokens[3]], (8, 8))
    with pytest.raises(ValueError, match="at most three axes"):
        vq(torch.zeros(1, 6, 2, 2, 2, 2))
