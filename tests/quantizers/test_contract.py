"""What every quantizer promises; a newly registered one is tested here without a line of its own."""

import copy
import math

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from driftvq import QUANTIZERS, Quantizer, make_quantizer
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.codebooks.following import FollowingCodes
from driftvq.quantizers.composite import CompositeQuantizer
from driftvq.quantizers.ns_vq_paper import SpreadingCodes
from tests.memory import largest_allocation
from tests.quantizers.cases import CASES, DEFAULTS, SIZE, Case, train

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_quantizer = pytest.mark.parametrize("case", DEFAULTS, ids=str)


def state(vq: Quantizer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in vq.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def codes(vq: Quantizer) -> torch.Tensor:
    """All codes in one row, also of codebooks of different sizes."""
    books = vq.codebooks if isinstance(vq, CompositeQuantizer) else (vq.codebook,)
    return torch.cat([book.detach().flatten() for book in books]).clone()


def has_fixed_grid(vq: Quantizer) -> bool:
    return any(isinstance(module, Quantizer) and module.fixed_grid for module in vq.modules())


def extra(vq: Quantizer) -> tuple[int, ...]:
    return (vq.indices_per_position,) if vq.indices_per_position else ()


@every_case
@pytest.mark.parametrize("layout", ["b n d", "b d", "b c h w", "b c n", "b h w d"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_keeps_shape_and_dtype_in_every_layout(case: Case, layout: str, mode: str) -> None:
    vq = case.make(channel_first=layout.startswith("b c"))
    vq.train(mode == "train")
    shapes = {
        "b n d": (2, 5, case.dim),
        "b d": (7, case.dim),
        "b c h w": (2, case.dim, 3, 4),
        "b c n": (2, case.dim, 5),
        "b h w d": (2, 3, 4, case.dim),
    }
    positions = {"b n d": (2, 5), "b d": (7,), "b c h w": (2, 3, 4), "b c n": (2, 5), "b h w d": (2, 3, 4)}
    x = torch.randn(shapes[layout])
    quantized, indices, loss = vq(x)
    assert quantized.shape == x.shape
    assert quantized.dtype == x.dtype
    assert indices.shape == (*positions[layout], *extra(vq))
    assert indices.dtype == torch.int64
    assert loss.shape == ()
    assert int(indices.min()) >= -1
    assert int(indices.max()) < vq.codebook_size


@every_case
def test_indices_give_back_what_forward_gave(case: Case) -> None:
    vq = case.make().eval()
    x = case.latents()
    assert torch.equal(vq.indices_to_codes(vq(x).indices), vq(x).quantized)
    train(vq, case)
    vq.eval()
    quantized, indices, _ = vq(x)
    assert torch.equal(vq.indices_to_codes(indices), quantized)
    assert torch.equal(vq.get_output_from_indices(indices), quantized)
    for dtype in (torch.int32, torch.int16):  # as they are stored, and no type that indexes
        assert torch.equal(vq.indices_to_codes(indices.to(dtype)), quantized)

    twin = case.make()
    twin.load_state_dict(vq.state_dict())
    twin.eval()
    assert torch.equal(twin(x).indices, indices)
    assert torch.equal(twin.indices_to_codes(indices), quantized)

    copied = copy.deepcopy(vq)
    assert torch.equal(copied(x).quantized, quantized)
    assert torch.equal(copied.indices_to_codes(indices), quantized)


@every_case
def test_round_trip_of_images(case: Case) -> None:
    vq = case.make(channel_first=True)
    image = torch.randn(2, case.dim, 4, 4)
    vq(image)
    vq.eval()
    quantized, indices, _ = vq(image)
    assert torch.equal(vq.indices_to_codes(indices), quantized)


@every_case
def test_a_copy_does_not_share_a_kept_codebook(case: Case) -> None:
    vq = case.make()
    train(vq, case)
    vq.eval()
    before = vq(case.latents()).quantized
    copied = copy.deepcopy(vq)
    train(copied, case)
    assert torch.equal(vq.eval()(case.latents()).quantized, before)
    copied.eval()
    quantized, indices, _ = copied(case.latents())
    assert torch.equal(copied.indices_to_codes(indices), quantized)


@every_case
def test_selects_the_nearest_code(case: Case) -> None:
    vq = case.make()
    if not isinstance(vq, CodebookQuantizer):
        pytest.skip("no explicit codebook to search: see the quantizer's own tests")
    train(vq, case)
    vq.eval()
    z = vq.to_code_space(vq.project_in(case.latents().reshape(-1, case.dim)))
    codebook = vq.codebook
    distances = (z[:, None, :].double() - codebook[None].double()).square().sum(dim=2)
    chosen = vq(case.latents()).indices.flatten()
    best = distances.min(dim=1).values
    assert torch.allclose(distances.gather(1, chosen[:, None])[:, 0], best, rtol=1e-5, atol=1e-9)


@every_case
def test_codebook_moves_in_training_only(case: Case) -> None:
    vq = case.make()
    train(vq, case, steps=2)
    vq.eval()
    before, codebook = state(vq), codes(vq)
    for seed in range(3):
        vq(case.latents(seed=seed))
    assert same(state(vq), before)
    if not has_fixed_grid(vq):
        train(vq, case)
        assert not torch.equal(codes(vq), codebook)


@every_case
def test_a_frozen_codebook_never_moves(case: Case) -> None:
    vq = case.make()
    if not hasattr(vq, "freeze_codebook") or has_fixed_grid(vq):
        pytest.skip("the codebook is fixed by definition")
    train(vq, case, steps=2)
    vq.freeze_codebook = True
    codebook = codes(vq)
    train(vq, case)
    assert torch.equal(codes(vq), codebook)
    vq.freeze_codebook = False
    train(vq, case)
    assert not torch.equal(codes(vq), codebook)


@every_case
def test_neither_momentum_nor_requires_grad_moves_a_frozen_codebook(case: Case) -> None:
    vq, x = case.make().train(), case.latents().requires_grad_()
    if not hasattr(vq, "freeze_codebook") or has_fixed_grid(vq):
        pytest.skip("the codebook is fixed by definition")
    optimizer = torch.optim.AdamW([x, *vq.parameters()], lr=0.01)
    for freezes in (False, True):
        if freezes:
            vq.freeze_codebook = True
            vq.requires_grad_(False).requires_grad_(True)
            codebook = codes(vq)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            out = vq(x)
            (out.quantized.square().mean() + out.loss).backward()
            optimizer.step()
    assert torch.equal(codes(vq), codebook)


@every_case
def test_evaluation_is_deterministic(case: Case) -> None:
    vq = case.make()
    train(vq, case)
    vq.eval()
    torch.manual_seed(1)
    first = vq(case.latents())
    torch.manual_seed(2)
    second = vq(case.latents())
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@every_case
def test_evaluation_is_independent_of_the_rest_of_the_batch(case: Case) -> None:
    vq = case.make()
    train(vq, case)
    vq.eval()
    x = case.latents()
    assert torch.equal(vq(x).indices[:2], vq(x[:2]).indices)


@every_case
def test_training_is_deterministic_under_a_seed(case: Case) -> None:
    states = []
    for _ in range(2):
        vq = case.make()
        torch.manual_seed(5)
        train(vq, case)
        states.append(state(vq))
    assert same(*states)


@every_case
def test_every_trainable_parameter_gets_a_finite_gradient(case: Case) -> None:
    vq = case.make()
    train(vq, case, steps=2)
    x = case.latents().requires_grad_()
    quantized, _, loss = vq(x)
    ((quantized - 1).square().mean() + loss).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0
    for name, parameter in vq.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


@every_case
def test_two_calls_may_have_one_backward_pass(case: Case) -> None:
    """Frames of a video, or two networks with one quantizer; also while a start gathers."""
    vq = case.make().train()
    x = case.latents().requires_grad_()
    for _ in range(2):
        first, second = vq(x), vq(x + 1)
        (first.quantized.square().mean() + second.quantized.square().mean() + first.loss + second.loss).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@every_quantizer
def test_the_gradient_reaches_the_encoder_in_evaluation_too(case: Case) -> None:
    vq, x = case.make().eval(), case.latents().requires_grad_()
    (gradient,) = torch.autograd.grad(vq(x).quantized.square().sum(), x)
    assert gradient.abs().max() > 0


class Quantized(torch.nn.Module):
    def __init__(self, vq: Quantizer) -> None:
        super().__init__()
        self.vq = vq

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.vq(x).quantized


@every_quantizer
def test_is_exported_for_any_number_of_samples(case: Case) -> None:
    """A graph takes ``len(x)`` for a constant, ``x.shape[0]`` not."""
    module, x = Quantized(case.make().eval()), case.latents()
    exported = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("samples")}})
    more = torch.cat([x, x + 0.1, x])
    assert torch.equal(exported.module()(more), module(more))


@every_quantizer
def test_functional_gradients_in_evaluation(case: Case) -> None:
    vq, x = case.make().eval(), case.latents().requires_grad_()

    def value(x: torch.Tensor) -> torch.Tensor:
        out = vq(x)
        return out.quantized.square().sum() + out.loss

    torch.testing.assert_close(torch.func.grad(value)(x.detach()), *torch.autograd.grad(value(x), x))


@every_case
def test_a_frozen_codebook_trains_again_after_a_loader_replaced_its_parameters(case: Case) -> None:
    vq = case.make()
    if not hasattr(vq, "freeze_codebook"):
        pytest.skip("nothing to freeze")
    trained = {name for name, parameter in vq.named_parameters() if parameter.requires_grad}
    vq.freeze_codebook = True
    vq.load_state_dict({name: tensor.clone() for name, tensor in vq.state_dict().items()}, assign=True)
    vq.freeze_codebook = True
    vq.freeze_codebook = False
    assert {name for name, parameter in vq.named_parameters() if parameter.requires_grad} == trained


@every_case
def test_loading_nothing_changes_nothing(case: Case) -> None:
    vq = case.make().train()
    x = torch.randn(5, case.dim)
    for _ in range(6):
        vq(x)
    other = copy.deepcopy(vq)
    other.load_state_dict({}, strict=False)
    for each in (vq, other):
        torch.manual_seed(0)
        for _ in range(3):
            each(x)
    for name, tensor in vq.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


@every_case
def test_mask_hides_positions(case: Case) -> None:
    mask = torch.ones(4, 32, dtype=torch.bool)
    mask[1, 5:] = False
    x = case.latents()
    garbage = torch.where(mask[..., None], x, torch.nan)
    outputs, states = [], []
    for latents in (torch.where(mask[..., None], x, 100.0), garbage):
        vq = case.make()
        torch.manual_seed(3)
        for _ in range(3):
            latents = latents.detach().clone().requires_grad_()
            output = vq(latents, mask)
        (output.quantized.sum() + output.loss).backward()
        assert latents.grad is not None
        assert (latents.grad[~mask] == 0).all()
        outputs.append(output)
        states.append(state(vq))
    assert same(*states)
    quantized, indices, loss = outputs[0]
    assert torch.equal(quantized, outputs[1].quantized)
    assert torch.equal(loss, outputs[1].loss)
    assert (quantized[~mask] == 0).all()
    assert (indices[~mask] == -1).all()
    vq.eval()
    masked, plain = vq(x, mask), vq(x)
    if case.name != "multi_scale_vq":  # a cell is the mean of its valid positions
        assert torch.equal(masked.indices[mask], plain.indices[mask])
    assert torch.equal(vq.indices_to_codes(masked.indices), masked.quantized)


@every_quantizer
def test_lengths_are_a_mask(case: Case) -> None:
    lens = torch.tensor([32, 5, 0, 17])
    outputs = []
    for how in ({"lens": lens}, {"mask": torch.arange(32) < lens[:, None]}):
        vq = case.make()
        torch.manual_seed(3)
        outputs.append((*vq(case.latents(), **how), *state(vq).values()))
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@every_quantizer
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"lens": torch.tensor([1, 2, 3, 33])}, r"between 0 and the 32 positions, got \[1, 2, 3, 33\]"),
        ({"lens": torch.tensor([1, 2])}, r"integers of shape \(4,\), got torch.int64 of \(2,\)"),
        ({"lens": torch.ones(4)}, "integers of shape"),
        ({"lens": torch.ones(4).long(), "mask": torch.ones(4, 32).bool()}, "give one of them, got both"),
    ],
    ids=["too long", "batch", "dtype", "with a mask"],
)
def test_refuses_bad_lengths(case: Case, how: dict[str, torch.Tensor], message: str) -> None:
    vq = case.make()
    before = state(vq)
    with pytest.raises(ValueError, match=message):
        vq(case.latents(), **how)
    assert same(state(vq), before)
    with pytest.raises(ValueError, match="lens is for sequences"):
        vq(torch.zeros(4, 2, 2, case.dim), lens=torch.ones(4).long())


@every_case
def test_a_frozen_call_changes_nothing_and_still_trains_the_encoder(case: Case) -> None:
    vq = case.make()
    train(vq, case, steps=2)
    before = state(vq)
    x = case.latents().requires_grad_()
    quantized, _, loss = vq(x, freeze=True)
    ((quantized - 1).square().mean() + loss).backward()
    assert same(state(vq), before)
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    for name, parameter in vq.named_parameters():
        if ".book." in f".{name}" or name.endswith("codes"):
            assert parameter.grad is None or not parameter.grad.any(), name


@every_case
def test_details_are_those_of_the_call(case: Case) -> None:
    outputs = []
    for method in ("forward", "details"):
        vq = case.make()
        train(vq, case, steps=2)
        torch.manual_seed(2)
        outputs.append((getattr(vq, method)(case.latents()), state(vq)))
    (output, first), (details, second) = outputs
    assert same(first, second)
    assert all(torch.equal(a, b) for a, b in zip(output, details[:3], strict=True))
    assert details.latents.shape == details.codes.shape == (4, 32, vq.codebook_dim)
    assert all(term.shape == () and term.isfinite() for term in details.terms)
    if isinstance(vq, CodebookQuantizer):
        terms = details.terms
        expected = vq.commitment_weight * terms.commitment + terms.codebook
        expected = expected + getattr(vq, "orthogonal_weight", 0) * terms.orthogonality
        assert torch.allclose(details.loss, expected)
        assert terms.commitment > 0
    for part in details.parts:
        assert part.loss.isfinite()
        assert part.indices.shape[0] == 4


@every_case
def test_loss_counts_valid_positions_only(case: Case) -> None:
    if case.name == "multi_scale_vq":
        pytest.skip("cells cover another share of fewer positions")
    vq = case.make()
    train(vq, case)
    vq.eval()
    x = case.latents()
    mask = torch.zeros(4, 32, dtype=torch.bool)
    mask[:, :8] = True
    assert torch.allclose(vq(x, mask).loss, vq(x[:, :8]).loss, rtol=1e-5, atol=1e-7)


@every_case
def test_fully_masked_batch_costs_nothing(case: Case) -> None:
    vq = case.make()
    train(vq, case)
    before = codes(vq)
    x = case.latents().requires_grad_()
    quantized, indices, loss = vq(x, torch.zeros(4, 32, dtype=torch.bool))
    unmasked_terms = getattr(vq, "orthogonal_weight", 0)
    assert loss.item() == 0 or unmasked_terms
    assert (quantized == 0).all()
    assert (indices == -1).all()
    (quantized.sum() + loss).backward()
    assert all(tensor.isfinite().all() for tensor in state(vq).values() if tensor.is_floating_point())
    moved = (codes(vq) - before).abs().max()
    assert moved < 1e-3 * before.abs().max() or case.name == "ema_vq" or case.options.get("quantizer") == "ema_vq"


@every_case
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_empty_batch(case: Case, mode: str) -> None:
    vq = case.make()
    train(vq, case, steps=2)
    vq.train(mode == "train")
    quantized, indices, loss = vq(torch.zeros(0, 5, case.dim))
    assert quantized.shape == (0, 5, case.dim)
    assert indices.shape == (0, 5, *extra(vq))
    assert loss.isfinite()


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(case: Case, dtype: torch.dtype) -> None:
    vq = case.make()
    x = case.latents().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        for _ in range(2):
            quantized, _, loss = vq(x)
    assert loss.dtype == torch.float32
    ((quantized.float() - 1).square().mean() + loss).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    vq.eval()
    plain = vq(x).indices
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(vq(x).indices, plain)


@every_case
def test_bfloat16_latents(case: Case) -> None:
    vq = case.make()
    train(vq, case)
    vq.eval()
    x = case.latents().bfloat16()
    quantized, indices, loss = vq(x)
    assert quantized.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert torch.equal(indices, vq(x.float()).indices)
    assert torch.equal(quantized, vq.indices_to_codes(indices).bfloat16())
    vq.train()
    assert vq(x).quantized.dtype == torch.bfloat16


@every_case
def test_double_precision(case: Case) -> None:
    vq = case.make().double()
    x = case.latents().double().requires_grad_()
    quantized, _, loss = vq(x)
    assert quantized.dtype == loss.dtype == torch.float64
    (quantized.square().mean() + loss).backward()


COMPILED = [case for case in CASES if not case.options or {"estimator", "transform", "parts"} & case.options.keys()]


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiles_into_one_graph(case: Case) -> None:
    vq = case.make()
    train(vq, case, steps=4)
    x = case.latents()
    vq.eval()
    expected = vq(x)
    torch._dynamo.reset()
    compiled = torch.compile(vq, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(x), expected, strict=True):
        assert torch.allclose(a, b, atol=1e-6)

    twin = copy.deepcopy(vq)
    vq.train()
    twin.train()
    for module in (compiled, twin):
        torch.manual_seed(7)
        z = x.clone().requires_grad_()
        quantized, _, loss = module(z)
        ((quantized - 1).square().mean() + loss).backward()
    for (name, a), b in zip(vq.named_parameters(), twin.parameters(), strict=True):
        if b.grad is not None and not _draws_random_numbers(case):
            assert _up_to_rounding(a.grad, b.grad), name
    if not _draws_random_numbers(case):
        assert all(_up_to_rounding(a, b) for a, b in zip(state(vq).values(), state(twin).values(), strict=True))


def _up_to_rounding(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of sums as large as the largest number: a graph takes its products from another library."""
    return torch.allclose(a, b, atol=3e-6 * max(1.0, b.abs().max().item() if b.numel() else 0.0))


STARTED = [Case(name, {"kmeans_init": True}) for name in ("ema_vq", "cvq", "trans_vq")]
SMALL = {"residual_vq": {"num_quantizers": 2}, "multi_scale_vq": {"scales": (4,)}}


@pytest.mark.parametrize("case", [*(Case(name, SMALL.get(name, {})) for name in QUANTIZERS), *STARTED], ids=str)
def test_a_compiled_graph_takes_latents_that_are_not_finite_as_masked(case: Case) -> None:
    """With some of them, with none and with nothing else."""
    vq = case.make()
    twin = copy.deepcopy(vq)
    torch._dynamo.reset()
    compiled = torch.compile(vq, fullgraph=True, backend="aot_eager")
    column = torch.arange(32).expand(4, 32)
    some, none, all_of_them = (column < 3) | (column > 6), column >= 0, column < 0
    for step, mask in enumerate((some, some, none, all_of_them)):
        x = case.latents(seed=step)
        bad = torch.where(mask[..., None], x, torch.nan)
        bad[:, 4] = torch.where(mask[:, 4, None], x[:, 4], torch.inf)
        bad[:, 5, 1:] = x[:, 5, 1:]  # a single NaN
        results = []
        for module, arguments in ((compiled, (bad.requires_grad_(),)), (twin, (x.requires_grad_(), mask))):
            torch.manual_seed(step)
            results.append(module(*arguments))
            if results[-1].loss.requires_grad:
                results[-1].loss.backward()
        assert torch.equal(results[0].indices, results[1].indices)
        assert torch.equal(results[0].quantized.isnan().all(dim=-1), ~mask)
        assert results[0].quantized[mask].isfinite().all()
        for (name, a), b in zip(state(vq).items(), state(twin).values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=f"{name} at step {step}")
    for (name, a), b in zip(vq.named_parameters(), twin.parameters(), strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)


def _draws_random_numbers(case: Case) -> bool:
    return any(word in str(case) for word in ("gumbel", "diveq", "directional", "space_filling", "sampled")) or bool(
        case.options.get("quantizer_dropout")
    )


TRAINED_BY_GRADIENT = [
    case
    for case in CASES
    if case.name
    in ("vq", "factorized_vq", "sim_vq", "trans_vq_paper", "trans_vq_published", "ns_vq_delta_e", "fsq", "lfq")
]


@pytest.mark.parametrize("case", TRAINED_BY_GRADIENT, ids=str)
def test_accumulated_gradients_equal_one_large_batch(case: Case) -> None:
    if {"estimator", "restart_after"} & case.options.keys() and case.options.get("estimator") != "rotation":
        pytest.skip("2/d, the sampling scale and the restarts depend on the batch by definition")
    if case.name == "lfq":
        pytest.skip("the entropy of the mean assignment is a property of the batch")
    vq = case.make(kmeans_init=False) if case.name not in ("fsq", "lfq") else case.make()
    twin = copy.deepcopy(vq)
    x = case.latents(batch=8).requires_grad_()
    quantized, _, loss = vq(x)
    ((quantized - 1).square().mean() + loss).backward()
    for part in x.chunk(4):
        quantized, _, loss = twin(part)
        (((quantized - 1).square().mean() + loss) / 4).backward()
    for (name, a), b in zip(vq.named_parameters(), twin.parameters(), strict=True):
        if a.requires_grad:
            assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-7), name


@every_quantizer
def test_evaluation_stores_nothing_of_size_latents_by_codes(case: Case) -> None:
    latents, codes = 8192, 4096
    vq = make_quantizer(case.name, dim=case.dim, codebook_size=codes)
    vq.eval()
    x = torch.randn(latents, case.dim)
    if isinstance(vq, CodebookQuantizer):
        _ = vq.codebook
    assert largest_allocation(lambda: vq(x)) < latents * codes * 4 / 2


@every_case
def test_readings_are_finite_and_there_where_something_regulates_itself(case: Case) -> None:
    vq = case.make()
    vq(case.latents())
    readings = vq.readings()
    regulated = any(isinstance(module, FollowingCodes | SpreadingCodes) for module in vq.modules())
    assert bool(readings) == regulated
    assert [name for name, value in readings.items() if not math.isfinite(value)] == []


@every_case
def test_code_age_counts_steps_since_selection(case: Case) -> None:
    vq = case.make()
    if vq.indices_per_position or case.options.get("estimator") in ("gumbel", "sampled"):
        pytest.skip("kept by the inner quantizers, or counted for the nearest codes and not for the sampled ones")
    seen = torch.zeros(vq.codebook_size, dtype=torch.int32)
    for step in range(3):
        indices = vq(case.latents(seed=step)).indices
        seen = torch.where(torch.isin(torch.arange(vq.codebook_size), indices), 0, seen + 1)
    assert torch.equal(vq.code_age, seen)
    assert vq.step == 3
    assert vq.recent_usage(3) == pytest.approx((seen < 3).double().mean().item())


@every_quantizer
@pytest.mark.parametrize(
    ("latents", "message"),
    [
        (torch.randn(2, 5, 7), "c = "),
        (torch.randn(7), "got shape"),
        (torch.ones(2, 5, 12, dtype=torch.int64), "floating-point"),
        (torch.full((2, 5, 12), torch.nan), "120 NaN or infinite"),
        (torch.full((2, 5, 12), torch.inf), "finite"),
    ],
    ids=["channels", "one dimension", "integers", "nan", "inf"],
)
def test_refuses_bad_latents_before_any_state_changes(case: Case, latents: torch.Tensor, message: str) -> None:
    vq = case.make()
    before = state(vq)
    with pytest.raises(ValueError, match=message):
        vq(latents)
    assert same(state(vq), before)


@every_quantizer
@pytest.mark.parametrize(
    "mask",
    [torch.ones(4, 31, dtype=torch.bool), torch.ones(4, 32), torch.ones(4, 32, 1, dtype=torch.bool)],
    ids=["positions", "dtype", "rank"],
)
def test_refuses_a_bad_mask(case: Case, mask: torch.Tensor) -> None:
    vq = case.make()
    before = state(vq)
    with pytest.raises(ValueError, match="mask must be boolean"):
        vq(case.latents(), mask)
    assert same(state(vq), before)


@every_quantizer
def test_models_with_it_can_be_averaged(case: Case) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(case.dim, case.dim), case.make())
    averaged = AveragedModel(model, use_buffers=True)
    for seed in range(3):
        model(case.latents(seed=seed))
        averaged.update_parameters(model)
    assert averaged.module.eval()(case.latents()).quantized.isfinite().all()


@every_quantizer
def test_maps_over_batches_and_over_codebooks(case: Case) -> None:
    vq = case.make().eval()
    x = torch.randn(3, 4, 5, case.dim)
    quantized, indices, _ = torch.vmap(lambda latents: tuple(vq(latents)))(x)
    each = [vq(latents) for latents in x]
    assert torch.equal(indices, torch.stack([output.indices for output in each]))
    torch.testing.assert_close(quantized, torch.stack([output.quantized for output in each]))
    others = [copy.deepcopy(vq) for _ in range(3)]
    for number, other in enumerate(others):
        for tensor in (*other.parameters(), *other.buffers()):
            if tensor.is_floating_point():
                tensor.data *= 1 + number
    parameters, buffers = torch.func.stack_module_state(others)
    call = torch.vmap(lambda p, b, latents: torch.func.functional_call(vq, (p, b), latents).indices)
    expected = torch.stack([other(latents).indices for other, latents in zip(others, x, strict=True)])
    assert torch.equal(call(parameters, buffers, x), expected)


@every_quantizer
def test_refuses_bad_indices(case: Case) -> None:
    vq = case.make()
    shape = (2, 3, *extra(vq))
    for wrong, message in (
        (torch.full(shape, SIZE), f"and {SIZE - 1}, got {SIZE}"),
        (torch.full(shape, -2), "got -2"),
        (torch.zeros(shape), "must be integers"),
    ):
        with pytest.raises(ValueError, match=message):
            vq.indices_to_codes(wrong)


@every_quantizer
@pytest.mark.parametrize("option", ["dim", "codebook_size"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_refuses_bad_sizes(case: Case, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=str(value)):
        case.make(**{option: value})


@every_quantizer
def test_has_a_page_and_a_test_of_its_own(case: Case, pytestconfig: pytest.Config) -> None:
    assert (pytestconfig.rootpath / f"docs/quantizers/{case.name}.md").is_file()
    assert (pytestconfig.rootpath / f"tests/quantizers/test_{case.name}.py").is_file()


def test_registry_knows_the_methods_of_the_paper() -> None:
    assert {"vq", "ema_vq", "factorized_vq", "sim_vq", "ns_vq", "trans_vq"} <= QUANTIZERS.keys()


@pytest.mark.parametrize("name", QUANTIZERS)
def test_what_is_no_tensor_with_values_is_refused_by_name(name: str) -> None:
    vq, x = make_quantizer(name, dim=8, codebook_size=64), torch.randn(2, 4, 8)
    before = {key: value.clone() for key, value in vq.state_dict().items()}
    with pytest.raises(ValueError, match="mask must be a boolean tensor on cpu, where the latents are, got list"):
        vq(x, mask=[[True] * 4] * 2)
    with pytest.raises(
        ValueError, match="mask must be a boolean tensor on cpu, where the latents are, got one on meta"
    ):
        vq(x, mask=torch.ones(2, 4, dtype=torch.bool, device="meta"))
    nested = torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)
    for latents, got in ((x.to("meta"), "strided one on meta"), (x[0].to_sparse(), "sparse_coo"), (nested, "nested")):
        with pytest.raises(ValueError, match=f"latents must be a dense tensor that has values, got a .*{got}"):
            vq(latents)
    with pytest.raises(ValueError, match="indices must be a tensor of integers that has values, got list"):
        vq.indices_to_codes([1, 2])
    for argument in ({"dim": "8", "codebook_size": 64}, {"dim": 8, "codebook_size": "64"}):
        with pytest.raises(ValueError, match=r"must be a whole number of at least 1, got '(8|64)'"):
            make_quantizer(name, **argument)
    assert all(torch.equal(value, before[key]) for key, value in vq.state_dict().items())


@pytest.mark.parametrize(("lens", "got"), [([1, 2], "list"), (torch.tensor([1, 2], device="meta"), "one on 'meta'")])
def test_lengths_that_are_no_tensor_with_values_are_refused_before_anything_changes(lens: object, got: str) -> None:
    vq = make_quantizer("ema_vq", dim=4, codebook_size=8)
    before = state(vq)
    with pytest.raises(ValueError, match=f"lens must be a tensor of integers that has values, got {got}"):
        vq(torch.randn(2, 3, 4), lens=lens)
    assert same(state(vq), before)
