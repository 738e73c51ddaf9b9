import pytest
import torch

from driftvq import EMAVQ, VQ, ResidualVQ, make_quantizer


def make(**options: object) -> ResidualVQ:
    torch.manual_seed(0)
    return ResidualVQ(**{"dim": 6, "codebook_size": 16, "quantizer": "vq", "kmeans_init": True, **options})


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
        ({"codebook_dim": "4"}, "codebook_dim must be a whole number of at least 1, got '4'"),
        ({"quantizer": "vqq"}, "unknown quantizer 'vqq'"),
        ({"dropout_min_levels": 9}, "dropout_min_levels must lie between 1 and 4, got 9"),
        ({"dropout_per": "token"}, "dropout_per must be one of 'batch', 'sample', got 'token'"),
        ({"codebook_size": (16, 8), "num_quantizers": 3}, r"codebook_size must be one number or 3, .* got \(16, 8\)"),
        (
            {"codebook_size": (16, 8), "shared_codebook": True},
            r"a shared codebook has one codebook_size, got \(16, 8\)",
        ),
    ],
)
def test_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResidualVQ(**{"dim": 6, "codebook_size": 16, **options})


@pytest.mark.parametrize("width", [0, 5])
def test_refuses_indices_of_another_number_of_levels(width: int) -> None:
    with pytest.raises(ValueError, match=rf"dimension of 1, 2, 3, 4 for 1 to 4 levels, got shape \(2, {width}\)"):
        make().indices_to_codes(torch.zeros(2, width, dtype=torch.int64))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_fewer_levels_in_a_call(mode: str) -> None:
    vq = trained()
    vq.train(mode == "train")
    x, ages = torch.randn(30, 6), [vq.part(level).step.clone() for level in range(4)]
    whole, coarse = vq(x, freeze=True), vq(x, levels=2)
    assert torch.equal(coarse.indices, whole.indices[:, :2])
    assert [int(vq.part(level).step - ages[level]) for level in range(4)] == (
        [1, 1, 0, 0] if mode == "train" else [0] * 4
    )
    vq.eval()
    quantized, indices, _ = vq(x, levels=2)
    assert torch.equal(vq.indices_to_codes(indices), quantized)
    padded = torch.cat([indices, torch.full_like(indices, -1)], dim=1)
    assert torch.allclose(vq.indices_to_codes(padded), quantized)


@pytest.mark.parametrize("levels", [0, 5, 2.5, True])
def test_refuses_unknown_numbers_of_levels(levels: object) -> None:
    vq = trained()
    before = {name: tensor.clone() for name, tensor in vq.state_dict().items()}
    with pytest.raises(ValueError, match=f"levels must .*, got {levels}"):
        vq(torch.randn(30, 6), levels=levels)
    assert all(torch.equal(tensor, before[name]) for name, tensor in vq.state_dict().items())


def test_codes_of_each_level_add_up() -> None:
    vq = trained(codebook_dim=3).eval()
    quantized, indices, _ = vq(torch.randn(5, 2, 6))
    codes = vq.get_codes_from_indices(indices)
    assert codes.shape == (4, 5, 2, 3)
    assert torch.equal(codes[2, 4, 1], vq.part(2).codebook[indices[4, 1, 2]])
    assert torch.allclose(vq.project_out(codes.sum(dim=0)), quantized, atol=1e-6)


def test_each_level_may_have_its_own_size_and_projections() -> None:
    vq = trained(codebook_size=(16, 8, 4), codebook_dim=(2, 3, 6))
    assert [tuple(codes.shape) for codes in vq.codebooks] == [(16, 2), (8, 3), (4, 6)]
    assert [part.project_in.weight.shape for part in vq.quantizers[:2]] == [(2, 6), (3, 6)]
    quantized, indices, loss = vq(torch.randn(30, 6, requires_grad=True))
    (quantized.sum() + loss).backward()
    assert all(part.project_out.weight.grad is not None for part in vq.quantizers[:2])
    vq.eval()
    quantized, indices, _ = vq(torch.randn(30, 6))
    assert torch.equal(vq.indices_to_codes(indices), quantized)
    with pytest.raises(ValueError, match=r"less than \(16, 8, 4\) at their places, got 8"):
        vq.indices_to_codes(torch.tensor([[15, 8, 0]]))
    with pytest.raises(ValueError, match=r"less than \(16, 8, 8\) at their places, got 9"):
        trained(codebook_size=(16, 8, 8)).indices_to_codes(torch.tensor([[15, 7, 9]]))
    with pytest.raises(ValueError, match="codebooks of different shapes"):
        _ = vq.codebook


def test_samples_drop_levels_each_for_itself() -> None:
    vq = trained(quantizer_dropout=0.5, dropout_per="sample", dropout_multiple_of=2)
    torch.manual_seed(0)
    _, indices, _ = vq(torch.randn(400, 3, 6))
    kept = (indices >= 0).sum(dim=2)
    assert (kept == kept[:, :1]).all()
    shares = [(kept[:, 0] == levels).float().mean().item() for levels in (1, 2, 3, 4)]
    assert shares == pytest.approx([0, 0.25, 0, 0.75], abs=0.08)


def test_a_wide_beam_finds_the_best_of_all_combinations() -> None:
    vq = trained(num_quantizers=2, codebook_size=8).eval()
    x = torch.randn(40, 6)
    greedy = (vq(x).quantized - x).square().sum(dim=1)
    vq.beam_size = 8
    quantized, indices, _ = vq(x)
    first, second = vq.codebooks
    every = (x[:, None, None] - first[:, None] - second[None]).square().sum(dim=3)
    assert torch.allclose((quantized - x).square().sum(dim=1), every.flatten(1).amin(dim=1), atol=1e-5)
    assert (every.flatten(1).amin(dim=1) < greedy - 1e-4).any()
    assert torch.equal(vq.indices_to_codes(indices), quantized)


def test_codes_learn_from_the_latents_that_a_beam_gave_them() -> None:
    vq = ResidualVQ(6, 16, quantizer="ema_vq", num_quantizers=2, beam_size=4, decay=0.0, eps=0.0)
    x = torch.randn(60, 6)
    indices = vq(x).indices[:, 0]
    for code in indices.unique():
        assert torch.allclose(vq.part(0).codebook[code], x[indices == code].mean(dim=0), atol=1e-5)


@pytest.mark.parametrize(("quantizer", "name"), [("lfq", "LFQ"), ("ns_vq_paper", "NSVQPaper")])
def test_a_beam_needs_codebooks_that_can_be_told_their_codes(quantizer: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} takes its nearest code only: beam_size must be 1, got 2"):
        ResidualVQ(6, 64, quantizer=quantizer, beam_size=2)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"quantizer": "fsq", "codebook_size": 1000, "levels": (8, 5, 5, 5)}, (0.101, 0.026, 0.023, 0.023)),
        ({"quantizer": "lfq", "codebook_size": 16}, (2.0, 0.4, 0.03, 0.0002)),
    ],
    ids=["fsq", "lfq"],
)
def test_levels_of_a_fixed_grid_become_finer(options: dict[str, object], most: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 4) / 2
    for levels, allowed in zip((1, 2, 4, 8), most, strict=True):
        vq = ResidualVQ(4, num_quantizers=levels, **options).eval()
        quantized, indices, _ = vq(x)
        assert ((quantized - x).square().mean() / x.var()).item() < allowed
        assert torch.equal(vq.indices_to_codes(indices), quantized)


def test_a_fixed_grid_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="FSQ has a fixed grid, which levels cannot share"):
        ResidualVQ(6, 64, quantizer="fsq", shared_codebook=True)


@pytest.mark.parametrize("name", ["residual_vq", "grouped_vq"])
def test_freezing_reaches_every_codebook(name: str) -> None:
    vq = make_quantizer(name, dim=4, codebook_size=8)
    for _ in range(4):
        vq(torch.randn(64, 4))
    vq.freeze_codebook = True
    codes = [part.codebook.clone() for part in vq.quantizers]
    vq(torch.randn(64, 4) + 1)
    assert all(part.freeze_codebook for part in vq.quantizers)
    assert all(torch.equal(part.codebook, before) for part, before in zip(vq.quantizers, codes, strict=True))
    vq.freeze_codebook = False
    vq(torch.randn(64, 4) + 1)
    assert not any(torch.equal(part.codebook, before) for part, before in zip(vq.quantizers, codes, strict=True))


@pytest.mark.parametrize("module", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["residual_vq", "grouped_vq", "multi_scale_vq", "ns_vq"])
def test_latents_of_another_precision_than_the_module_come_back_exactly(
    name: str, dtype: torch.dtype, module: torch.dtype
) -> None:
    vq = make_quantizer(name, dim=4, codebook_size=16).to(module)
    for _ in range(8):
        vq(torch.randn(1, 64, 4, dtype=dtype))
    quantized, indices, _ = vq.eval()(torch.randn(1, 64, 4, dtype=dtype))
    assert quantized.dtype == dtype
    assert torch.equal(vq.indices_to_codes(indices).to(dtype), quantized)


@pytest.mark.parametrize("module", [torch.float32, torch.float64])
def test_levels_without_a_codebook_give_double_latents_back_exactly(module: torch.dtype) -> None:
    vq = ResidualVQ(dim=3, codebook_size=8, num_quantizers=3, quantizer="bsq").to(module).eval()
    quantized, indices, _ = vq(torch.randn(50, 3, dtype=torch.float64))
    assert torch.equal(vq.indices_to_codes(indices).double(), quantized)


def test_levels_that_share_a_codebook_restart_a_code_once_in_a_step() -> None:
    """At a latent, not at what the first level leaves of it, which is nothing once the code is there."""
    vq = ResidualVQ(dim=2, codebook_size=8, num_quantizers=2, quantizer="vq", shared_codebook=True, restart_after=1)
    codes = torch.cat([torch.tensor([[5.0, 5.0], [0.0, 0.0]]), 1e3 + 1e3 * torch.arange(6.0)[:, None].expand(6, 2)])
    vq.part(0).set_codebook_(codes)
    vq(torch.full((4, 2), 5.0))
    assert vq.part(0).code_age.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    latents = 5 + torch.arange(8.0)[:, None] * torch.tensor([[0.5, 0.25]])
    vq(latents)
    assert all((latents == code).all(dim=1).any() for code in vq.part(0).codebook[2:])
