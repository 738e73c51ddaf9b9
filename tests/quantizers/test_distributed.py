"""Two processes that share a batch must end where one process with the whole batch ends."""

from datetime import timedelta
from time import monotonic
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from driftvq import (
    EMAVQ,
    LFQ,
    NSVQ,
    QUANTIZERS,
    VQ,
    Modified,
    NSVQDeltaE,
    NSVQPaper,
    NSVQPublished,
    ResidualVQ,
    SimVQ,
    TransVQ,
    TransVQPaper,
    TransVQPublished,
    make_quantizer,
)
from driftvq.quantizers.codebooks.sampling import draw_rows
from driftvq.quantizers.distributed import (
    from_first_process,
    gather_rows,
    sum_over_processes,
    world_size,
)

DIM, SIZE, ROWS, STEPS, RANKS = 4, 24, 8, 20, 2
TIMEOUT_SECONDS = 90


class Case(NamedTuple):
    make: object
    ddp: bool = False
    batches: str = "full"
    dtype: torch.dtype = torch.float64
    seeds_differ: bool = False
    """Each process builds the module from its own random numbers; the first training step must make them one."""
    joined: bool = True
    """Whether one process on the joined batch must give the same codebook."""


def ema(**options):
    return lambda: EMAVQ(DIM, SIZE, decay=0.8, **options)


def ns(**options):
    return lambda: NSVQ(DIM, SIZE, **options)


def ns_with_lost_codes():
    vq = NSVQ(DIM, SIZE, kmeans_init=False)
    vq.book.codes[4:] += 1000
    vq.book.memory[4:] = 0
    return vq


def ns_paper(divisor):
    return lambda: NSVQPaper(DIM, SIZE, estimator=Modified(divisor=divisor))


def trans(transform):
    return lambda: TransVQ(DIM, SIZE, transform=transform, width=8)


def named(name, size=SIZE, **options):
    return lambda: make_quantizer(name, dim=DIM, codebook_size=size, **options)


class OtherLevels(ResidualVQ):
    """The processes take turns in using one level and two."""

    def forward(self, x, mask=None):
        rank = dist.get_rank() if self.training else 0
        return super().forward(x, mask, levels=1 + (int(self.step) + rank) % 2)


def other_levels(**options):
    return lambda: OtherLevels(DIM, SIZE, num_quantizers=2, **options)


REPLACE = {"threshold_ema_dead_code": 0.5, "kmeans_init": True}

CASES = {
    "ema": Case(ema(), seeds_differ=True),
    "ema float32": Case(ema(), dtype=torch.float32),
    "ema kmeans": Case(ema(kmeans_init=True), seeds_differ=True),
    "ema replacement": Case(ema(threshold_ema_dead_code=0.5)),
    "ema replacement kmeans": Case(ema(**REPLACE), seeds_differ=True),
    "ema replacement masked": Case(ema(**REPLACE), batches="masked"),
    "ema replacement empty": Case(ema(**REPLACE), batches="empty"),
    "ema replacement ddp": Case(ema(**REPLACE), ddp=True),
    "ns": Case(ns(), seeds_differ=True),
    "ns float32": Case(ns(), dtype=torch.float32, seeds_differ=True, joined=False),
    "ns without drift": Case(ns(parts=["winners", "relocation"]), seeds_differ=True),
    "ns drift alone": Case(ns(parts=["drift"]), seeds_differ=True),
    "ns masked": Case(ns(), batches="masked"),
    "ns empty": Case(ns(), batches="empty"),
    "ns uneven": Case(ns_with_lost_codes, batches="uneven"),
    "ns ddp": Case(ns(), ddp=True, seeds_differ=True),
    "ns paper ddp": Case(ns_paper(10.0), ddp=True, seeds_differ=True),
    "ns paper ddp, d of the batch": Case(ns_paper("latents"), ddp=True, seeds_differ=True),
    "ns paper ddp masked": Case(ns_paper("latents"), ddp=True, batches="masked", joined=False),
    "ns published ddp": Case(lambda: NSVQPublished(DIM, SIZE), ddp=True, seeds_differ=True),
    "ns delta_e ddp": Case(lambda: NSVQDeltaE(DIM, SIZE), ddp=True),
    "vq ddp": Case(lambda: VQ(DIM, SIZE), ddp=True, seeds_differ=True),
    "vq restart ddp": Case(lambda: VQ(DIM, SIZE, restart_after=3), ddp=True),
    "vq restart ddp masked": Case(lambda: VQ(DIM, SIZE, restart_after=3), ddp=True, batches="masked", joined=False),
    "vq restart ddp empty": Case(lambda: VQ(DIM, SIZE, restart_after=3), ddp=True, batches="empty", joined=False),
    "wasserstein_vq ddp": Case(named("wasserstein_vq"), ddp=True, seeds_differ=True),
    "opt_vq ddp": Case(named("opt_vq"), ddp=True, seeds_differ=True),
    "cvq ddp": Case(named("cvq", anchors="closest"), ddp=True, seeds_differ=True),
    "sim_vq ddp": Case(lambda: SimVQ(DIM, SIZE), ddp=True, seeds_differ=True),
    "trans_vq ddp": Case(trans("attention"), ddp=True, seeds_differ=True),
    "trans_vq mlp ddp": Case(trans("mlp"), ddp=True),
    "trans_vq mlp float32 ddp": Case(trans("mlp"), ddp=True, dtype=torch.float32, seeds_differ=True, joined=False),
    "trans_vq masked ddp": Case(trans("attention"), ddp=True, batches="masked", joined=False),
    "trans_vq paper ddp": Case(lambda: TransVQPaper(DIM, SIZE, width=8), ddp=True, seeds_differ=True),
    "trans_vq published ddp": Case(lambda: TransVQPublished(DIM, SIZE), ddp=True, seeds_differ=True),
    "trans_vq ddp empty": Case(trans("attention"), ddp=True, batches="empty", joined=False),
    # Fewer codes than latents: residuals of 0 make equal codes, between which the last bit decides.
    "residual ddp": Case(
        named("residual_vq", size=12, num_quantizers=2, quantizer="ns_vq"), ddp=True, seeds_differ=True
    ),
    "residual masked ddp": Case(named("residual_vq", num_quantizers=2), ddp=True, batches="masked", joined=False),
    "residual empty": Case(named("residual_vq", num_quantizers=2), batches="empty", joined=False),
    # The latents of both levels stand in another order, and so other ones are drawn for codes that are lost.
    "residual shared": Case(named("residual_vq", num_quantizers=2, shared_codebook=True), joined=False),
    "residual other levels": Case(other_levels(), seeds_differ=True, joined=False),
    "residual other levels, shared": Case(other_levels(shared_codebook=True), joined=False),
    "grouped ddp": Case(named("grouped_vq", groups=2, quantizer="ns_vq"), ddp=True, seeds_differ=True),
    "grouped of residual": Case(named("grouped_vq", groups=2, quantizer="residual_vq"), seeds_differ=True),
}


class Encoded(nn.Module):
    def __init__(self, quantizer):
        super().__init__()
        self.encoder = nn.Linear(DIM, DIM)
        self.quantizer = quantizer

    def forward(self, x, mask):
        return self.quantizer(self.encoder(x), mask)


def build(case, rank):
    torch.manual_seed(100 * rank if case.seeds_differ else 0)
    quantizer = case.make()
    return (Encoded(quantizer) if case.ddp else quantizer).to(case.dtype)


def batch(case, step, rank):
    """Latents of one process, and their mask; the cloud drifts from step to step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(1, ROWS, DIM, generator=generator, dtype=torch.float64) + 0.05 * step
    mask = torch.ones(1, ROWS, dtype=torch.bool)
    if case.batches == "uneven" and rank == 1:
        x, mask = x.repeat(1, 4, 1) + torch.arange(4.0).repeat_interleave(ROWS)[:, None], mask.repeat(1, 4)
    if case.batches == "masked":
        mask = torch.rand(1, ROWS, generator=generator) < 0.7
        if (step, rank) in ((0, 0), (4, 1), (9, 0)):
            mask[:] = False
    if case.batches == "empty" and (step, rank) in ((0, 0), (4, 1), (9, 0)):
        x, mask = x[:, :0], mask[:, :0]
    return x.to(case.dtype), None if case.batches == "full" else mask


def joined_batch(case, step):
    parts = [batch(case, step, rank) for rank in range(RANKS)]
    x = torch.cat([x for x, _ in parts], dim=1)
    return x, None if case.batches == "full" else torch.cat([mask for _, mask in parts], dim=1)


def train(case, model, batch_of):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05) if trained else None
    model.train()
    for step in range(STEPS):
        x, mask = batch_of(case, step)
        quantized, _, loss = model(x, mask)
        if optimizer is not None:
            loss = loss + (quantized - 1).square().sum() / max(x.numel(), 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    quantizer = getattr(getattr(model, "module", model), "quantizer", model)
    with torch.no_grad():
        return {
            "codebook": quantizer.codebook.detach().clone(),
            "code_age": quantizer.code_age.clone(),
            "started": all(part.start.done for part in quantizer.modules() if hasattr(part, "start")),
            "indices": quantizer.eval()(joined_batch(CASES["ema"], STEPS)[0].to(case.dtype)).indices,
        }


def drawn_rows(rows, weight, wanted):
    drawn = draw_rows(rows, weight.float(), torch.tensor(wanted), wanted, torch.tensor(5))
    return drawn.rows[drawn.there].tolist()


def collectives(rank):
    x = torch.arange(12.0).reshape(6, 2)
    local, valid = (
        (x[:2], torch.tensor([True, False])) if rank == 0 else (x[2:], torch.tensor([True, True, False, True]))
    )
    half = local[: 2 * rank]
    drawn = {
        "rows": drawn_rows(local, valid, 9),
        "nothing": drawn_rows(local, torch.zeros_like(valid), 3),
        "few": drawn_rows(local, valid, 2),
        "from_second": drawn_rows(half, torch.ones(len(half)), 2),
    }
    total, count, matrix = sum_over_processes(torch.tensor([1.0, rank]), torch.tensor(rank + 1.0), local[:2].t())
    points = lfq_latents()[2 * rank : 2 + 4 * rank].requires_grad_()
    diversity(points).backward()
    kept = torch.tensor([float(rank)])
    sum_over_processes(kept)
    return {
        "world_size": world_size(),
        "gathered": gather_rows(local),
        "gathered_empty": gather_rows(half),
        "first": from_first_process(torch.tensor([rank + 7])),
        "sum": total,
        "count": count,
        "matrix": matrix,
        "kept": kept,
        "diversity_grad": points.grad / RANKS,
        **drawn,
    }


def evaluate_alone(rank):
    """What the first process evaluates while the others do something else: it must not wait for them."""
    if rank > 0:
        return []
    x = torch.randn(10, DIM, generator=torch.Generator().manual_seed(0))
    return [name for name in QUANTIZERS if make_quantizer(name, dim=DIM, codebook_size=16).eval()(x).loss.isfinite()]


def lfq_latents():
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def diversity(points_nd):
    """The part of LFQ's loss that joins latents."""
    vq = LFQ(3, 8, entropy_weight=1, commitment_weight=0, inv_temperature=1.0)
    alone = LFQ(3, 8, entropy_weight=1, commitment_weight=0, inv_temperature=1.0, diversity_gamma=0)
    return vq(points_nd).loss - alone(points_nd).loss


def worker(rank, folder):
    torch.set_num_threads(1)
    models = {name: build(case, rank) for name, case in CASES.items()}
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    results = {"alone": evaluate_alone(rank), "collectives": collectives(rank)}
    for name, case in CASES.items():
        model = nn.parallel.DistributedDataParallel(models[name]) if case.ddp else models[name]
        results[name] = train(case, model, lambda case, step: batch(case, step, rank))
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("needs gloo")
    folder = tmp_path_factory.mktemp("processes")
    context = mp.spawn(worker, (str(folder),), nprocs=RANKS, join=False)
    deadline = monotonic() + 3 * TIMEOUT_SECONDS
    try:
        while not context.join(timeout=1):
            assert monotonic() < deadline, "the processes hang"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", CASES)
def test_all_processes_have_the_same_codebook(ranks, name):
    first, second = (results[name] for results in ranks)
    assert first["codebook"].isfinite().all()
    assert torch.equal(first["codebook"], second["codebook"])
    assert torch.equal(first["code_age"], second["code_age"])
    assert torch.equal(first["indices"], second["indices"])
    assert first["started"]
    assert second["started"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.joined])
def test_two_processes_agree_with_one_on_the_joined_batch(ranks, name):
    case = CASES[name]
    model = build(case, 0)
    start = getattr(model, "quantizer", model).codebook.detach().clone()
    alone = train(case, model, joined_batch)
    together = ranks[0][name]
    assert not torch.allclose(alone["codebook"], start, atol=1e-3)
    torch.testing.assert_close(together["codebook"], alone["codebook"], rtol=0, atol=1e-5)
    assert torch.equal(together["code_age"], alone["code_age"])
    assert torch.equal(together["indices"], alone["indices"])


def test_the_k_means_start_takes_several_batches():
    model = ns()().double()
    done = []
    for step in range(7):
        model(joined_batch(CASES["ns"], step)[0])
        done.append(model.start.done)
    assert done == [False] * 5 + [True] * 2  # 16 latents each, 96 are needed


def test_collectives_over_two_processes(ranks):
    x = torch.arange(12.0).reshape(6, 2)
    valid = torch.tensor([True, False, True, True, False, True])
    alone = {
        "rows": drawn_rows(x, valid, 9),
        "few": drawn_rows(x, valid, 2),
        "from_second": drawn_rows(x[2:4], torch.ones(2), 2),
    }
    assert len(alone["rows"]) == 4
    for results in ranks:
        found = results["collectives"]
        assert found["world_size"] == RANKS
        assert torch.equal(found["gathered"], x)
        assert torch.equal(found["gathered_empty"], x[2:4])
        assert found["first"].tolist() == [7]
        assert found["sum"].tolist() == [2.0, 1.0]
        assert found["count"].item() == 3
        assert torch.equal(found["matrix"], (x[:2] + x[2:4]).t())
        assert all(found[name] == drawn for name, drawn in alone.items())
        assert found["nothing"] == []
    assert [results["collectives"]["kept"].item() for results in ranks] == [0.0, 1.0]


def test_lfq_spreads_the_latents_of_all_processes(ranks):
    points = lfq_latents().requires_grad_()
    diversity(points).backward()
    together = torch.cat([results["collectives"]["diversity_grad"] for results in ranks])
    torch.testing.assert_close(together, points.grad)


def test_evaluation_waits_for_nobody(ranks):
    assert ranks[0]["alone"] == list(QUANTIZERS)


def test_one_process_alone():
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    assert world_size() == 1
    assert torch.equal(gather_rows(x), x)
    assert torch.equal(from_first_process(x), x)
    first, second = sum_over_processes(x, 2 * x)
    assert torch.equal(first, x)
    assert torch.equal(second, 2 * x)
