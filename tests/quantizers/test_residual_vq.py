import pytest
import torch

from driftvq import EMAVQ, VQ, ResidualVQ


def make(**options: object) -> ResidualVQ:
    torch.manual_seed(0)
    return ResidualVQ(dim=6, codebook_size=16, **{"quantizer": "vq", "kmeans_init": True, **options})


def trained(**options: object) -> ResidualVQ:
    vq = make(**options)
    for seed in range(4):
        vq(torch.randn(64, 6, generator=torch.Generator().manual_seed(seed)))
    return vq


def test_each_level_quantises_what_the_levels_before_left_over() -> None:
    vq = trained().eval()
    x = torch.randn(30, 6)
    quantized, indices, loss = vq(x)
    residual, total, losses = x, torch.zeros_like(x), []
    for level in range(4):
        q, i, level_loss = vq.part(level)(residual)
        assert torch.equal(i, indices[:, level])
        total, residual = total + q, residual - q
        losses.append(level_loss)
    assert torch.allclose(quantized, total)
    assert loss.item() == pytest.approx(sum(losses).item(), rel=1e-5)


def test_more_levels_leave_less_error() -> None:
    x = torch.randn(200, 6)
    errors = [(trained(num_quantizers=levels).eval()(x).quantized - x).square().mean() for levels in (1, 2, 4)]
    assert errors[0] > errors[1] > errors[2]


def test_the_encoder_receives_the_decoders_gradient_once() -> None:
    vq = trained()
    x, gradient = torch.randn(30, 6, requires_grad=True), torch.randn(30, 6)
    (vq(x).quantized * gradient).sum().backward()
    assert torch.allclose(x.grad, gradient, atol=1e-6)


def test_a_shared_codebook_is_one_codebook() -> None:
    vq = trained(shared_codebook=True)
    assert len(vq.quantizers) == 1
    assert vq.codebook.shape == (4, 16, 6)
    assert len({tensor.data_ptr() for tensor in vq.state_dict().values() if tensor.numel()}) == sum(
        1 for tensor in vq.state_dict().values() if tensor.numel()
    )


def test_dropped_levels_have_no_index_no_loss_and_no_update() -> None:
    vq = ResidualVQ(dim=6, codebook_size=16, quantizer="ema_vq", num_quantizers=3, quantizer_dropout=True)
    seen = set()
    for seed in range(30):
        torch.manual_seed(seed)
        ages = [vq.part(level).code_age.clone() for level in range(3)]
        _, indices, _ = vq(torch.randn(20, 6))
        kept = int((indices[0] >= 0).sum())
        seen.add(kept)
        assert (indices[:, :kept] >= 0).all()
        assert (indices[:, kept:] == -1).all()
        for level in range(kept, 3):
            assert torch.equal(vq.part(level).code_age, ages[level] + 1)
    assert seen == {1, 2, 3}
    vq.eval()
    assert (vq(torch.randn(20, 6)).indices >= 0).all()


def test_indices_of_fewer_levels_give_the_partial_sum() -> None:
    vq = trained().eval()
    indices = vq(torch.randn(10, 6)).indices.clone()
    indices[:, 2:] = -1
    expected = sum(vq.part(level).codebook[indices[:, level]] for level in range(2))
    assert torch.allclose(vq.indices_to_codes(indices), expected)


def test_takes_a_maker_instead_of_a_name() -> None:
    def maker(dim: int, codebook_size: int) -> VQ:
        return VQ(dim, codebook_size, estimator="rotation")

    vq = ResidualVQ(dim=6, codebook_size=16, quantizer=maker)
    assert isinstance(vq.part(3), VQ)
    assert isinstance(ResidualVQ(dim=6, codebook_size=16, quantizer="ema_vq", decay=0.5).part(0), EMAVQ)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_quantizers": 0}, "num_quantizers must be a whole number of at least 1, got 0"),
        ({"quantizer": "vqq"}, "unknown quantizer 'vqq'"),
        ({"dropout_min_levels": 9}, "dropout_min_levels must lie between 1 and 4, got 9"),
    ],
)
def test_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResidualVQ(dim=6, codebook_size=16, **options)


@pytest.mark.parametrize("width", [0, 5])
def test_refuses_indices_of_another_number_of_levels(width: int) -> None:
    with pytest.raises(ValueError, match=rf"dimension of 1, 2, 3, 4 for 1 to 4 levels, got shape \(2, {width}\)"):
        make().indices_to_codes(torch.zeros(2, width, dtype=torch.int64))
