"""Quantizers in the training loops of others: two processes by DDP, FSDP and accelerate, and transformers' Trainer."""

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor, nn

from driftvq import Quantizer, make_quantizer

DIM, SIZE, ROWS, STEPS, RANKS = 6, 32, 16, 6, 2

QUANTIZERS = {
    "ns_vq": {},
    "trans_vq": {"width": 8},
    "trans_vq_paper": {"width": 8},
    "sim_vq": {},
    "ema_vq": {"codebook_dim": 4, "kmeans_init": True},
    "factorized_vq": {"codebook_dim": 4},
    "gumbel_vq": {},
    "lfq": {},
    "residual_vq": {"num_quantizers": 2, "codebook_dim": (3, 3)},
}


class Model(nn.Module):
    def __init__(self, name: str, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Linear(DIM, DIM)
        self.quantizer = make_quantizer(name, dim=DIM, codebook_size=SIZE, **QUANTIZERS[name])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        quantized, indices, loss = self.quantizer(self.encoder(x))
        return {"loss": (quantized - 1).square().mean() + loss, "indices": indices}


def latents(step: int, rank: int) -> Tensor:
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(100 * step + rank)) + 0.05 * step


def train(model: nn.Module, rank: int, backward: Callable[[Tensor], None] = Tensor.backward) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for step in range(STEPS):
        torch.manual_seed(step)
        optimizer.zero_grad()
        backward(model(latents(step, rank))["loss"])
        optimizer.step()


def outcome(quantizer: Quantizer) -> dict[str, Tensor]:
    """What a training left, read outside of ``forward``."""
    width = (quantizer.indices_per_position,) if quantizer.indices_per_position else ()
    indices = torch.arange(SIZE).reshape(-1, *(1,) * len(width)).expand(SIZE, *width)
    with torch.no_grad():
        quantizer.eval()
        return {
            "codebook": quantizer.codebook.clone(),
            "codes": quantizer.indices_to_codes(indices),
            "codes before the projection": quantizer.get_codes_from_indices(indices),
            "details": quantizer.details(latents(0, 0)).quantized,
            "code_age": quantizer.code_age.clone(),
            "step": quantizer.step.clone(),
        }


def by_ddp(name: str, rank: int, broadcast_buffers: bool) -> Quantizer:
    model = Model(name, seed=rank)
    train(nn.parallel.DistributedDataParallel(model, broadcast_buffers=broadcast_buffers), rank)
    return model.quantizer


def by_fsdp(name: str, rank: int) -> Quantizer:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = Model(name), init_device_mesh("cpu", (RANKS,))
    for module in (model.quantizer, model):
        fully_shard(module, mesh=mesh)
    train(model, rank)
    return model.quantizer


def by_accelerate(name: str, rank: int) -> Quantizer:
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), Model(name, seed=rank)
    assert accelerator.num_processes == RANKS
    prepared = accelerator.prepare(model)
    train(prepared, rank, accelerator.backward)
    return accelerator.unwrap_model(prepared).quantizer


LOST_BY_SHARDING: dict[str, dict[str, Any]] = {
    "vq": {"kmeans_init": True},
    "ns_vq": {"estimator": "modified"},
    "ns_vq_paper": {},
    "residual_vq": {"quantizer": "vq", "restart_after": 3},
}


def refusal(name: str, rank: int) -> str:
    """What is said of codes that FSDP would put back."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    vq = make_quantizer(name, dim=DIM, codebook_size=SIZE, **LOST_BY_SHARDING[name])
    fully_shard(vq, mesh=init_device_mesh("cpu", (RANKS,)))
    try:
        vq(latents(0, rank))
    except ValueError as error:
        return str(error)
    return "nothing"


WAYS: dict[str, Callable[[str, int], Quantizer]] = {
    "DDP": lambda name, rank: by_ddp(name, rank, broadcast_buffers=True),
    "DDP without broadcast": lambda name, rank: by_ddp(name, rank, broadcast_buffers=False),
    "FSDP": by_fsdp,
    "accelerate": by_accelerate,
}


def worker(rank: int, folder: str, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results: dict[tuple[str, str], Any] = {
        (way, name): outcome(run(name, rank)) for way, run in WAYS.items() for name in QUANTIZERS
    }
    results |= {("refused", name): refusal(name, rank) for name in LOST_BY_SHARDING}
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], dict[str, Tensor]]]:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("needs gloo")
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, (str(folder), port), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_way_to_train_with_two_processes_gives_one_codebook(ranks, name: str, way: str) -> None:
    reference = ranks[0]["DDP", name]
    assert reference["step"] == STEPS
    assert name == "lfq" or not torch.equal(reference["codebook"], Model(name).quantizer.codebook)
    for results in ranks:
        for what, expected in reference.items():
            torch.testing.assert_close(results[way, name][what], expected, rtol=0, atol=1e-6, msg=f"{way}: {what}")


@pytest.mark.parametrize("name", LOST_BY_SHARDING)
def test_codes_that_fsdp_would_put_back_are_refused(ranks, name: str) -> None:
    assert all("FSDP has sharded the codes of" in results["refused", name] for results in ranks)


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return STEPS * ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": latents(index // ROWS, 0)[index % ROWS]}


@pytest.mark.parametrize("name", ["ns_vq", "residual_vq"])
def test_the_trainer_of_transformers_trains_checkpoints_and_resumes(tmp_path: Path, name: str) -> None:
    from transformers import Trainer, TrainingArguments

    def trainer(model: nn.Module, folder: Path) -> Trainer:
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=ROWS, num_train_epochs=1, save_steps=2, use_cpu=True
        )
        arguments.set_logging(strategy="no", report_to=[])
        return Trainer(model=model, args=arguments, train_dataset=Rows())

    model, twin = Model(name), Model(name, seed=1)
    trainer(model, tmp_path / "whole").train()
    assert model.quantizer.step == STEPS
    trainer(twin, tmp_path / "rest").train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for (key, mine), other in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, other), key


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model("residual_vq")

    def training_step(self, x: Tensor, _: int) -> Tensor:
        return self.model(x)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize("use_buffers", [True, False])
def test_lightning_averages_a_model_whose_k_means_start_is_under_way(use_buffers: bool) -> None:
    average = EMAWeightAveraging(decay=0.0, use_buffers=use_buffers)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[average], **quiet)
    model = Lit()
    trainer.fit(
        model,
        torch.utils.data.DataLoader([latents(step, 0)[row] for step in range(STEPS) for row in range(ROWS)], ROWS),
    )
    alone = Model("residual_vq")
    train(alone, 0)
    torch.testing.assert_close(model.model.quantizer.codebook, alone.quantizer.codebook)
