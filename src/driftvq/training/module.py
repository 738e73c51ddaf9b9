"""The training step of a tokenizer, and what a checkpoint of it holds."""

import math
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from driftvq.data import ImageBatch, to_float
from driftvq.functional import count_codes, perplexity
from driftvq.models import VQVAE
from driftvq.models.vqvae import VQVAEOutput
from driftvq.training.adversarial import Adversary
from driftvq.training.averaging import WeightAverage
from driftvq.training.config import TrainConfig
from driftvq.training.losses import make_reconstruction_loss
from driftvq.training.random_state import random_state, seed_all, set_random_state
from driftvq.training.skipped import SkippedImages
from driftvq.training.stopping import NonFiniteError, all_processes, any_process, save_batch_names
from driftvq.training.validation import ValidationSums

STATE = "driftvq"
"""Where a checkpoint keeps what Lightning does not know of."""


class TokenizerModule(LightningModule):
    """Trains a :class:`VQVAE`: ``loss = reconstruction + quantizer's loss [+ adversarial term]``.

    Logs go to the loggers directly, at the step that they belong to and before a checkpoint of that step is written.

    Args:
        model: to train.
        config: of the run.
        steps: optimizer steps of the run.
        run: its folder.
        channels_last: memory layout of the images.

    Attributes:
        batches: training batches begun so far. It says which batch is next, and is the truth about the progress.
    """

    def __init__(self, model: VQVAE, config: TrainConfig, steps: int, run: Path, channels_last: bool) -> None:
        super().__init__()
        self.model, self.config, self.steps, self.run = model, config, steps, run
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.batches = 0
        self.skipped = SkippedImages(run)
        self.reconstruction_loss = make_reconstruction_loss(config)
        self.adversary = _make_adversary(config)
        self.average = WeightAverage(model, config.weight_ema) if config.weight_ema > 0 else None
        self.validation: ValidationSums | None = None
        self._names: list[str] = []
        self._seen: tuple[Tensor, Tensor] | None = None
        self._random_states: list[dict[str, Any]] = []
        model.encoder.register_forward_hook(self._check_latents)

    @property
    def steps_done(self) -> int:
        """Optimizer steps taken so far."""
        return self.batches // self.config.accumulate

    @property
    def at_step_end(self) -> bool:
        """Whether the last batch completed a step."""
        return self.batches % self.config.accumulate == 0

    @property
    def validation_due(self) -> bool:
        """Whether a validation follows the step just taken."""
        return self.steps_done % self.config.val_every == 0 or self.steps_done >= self.steps

    def configure_optimizers(self) -> torch.optim.Optimizer:
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # With a gradient scaler, Lightning cannot clip the gradients of a fused optimizer.
        fused = self.config.precision != "16-mixed"
        return torch.optim.Adam(parameters, lr=self.config.learning_rate, betas=self.config.betas, fused=fused)

    def on_fit_start(self) -> None:
        for part in (self.adversary, self.average):
            if part is not None:
                part.to_(self.device)

    def on_train_start(self) -> None:
        """The last hook before the first step: from here on random numbers depend on the seed and the step alone."""
        if not self._random_states:
            seed_all(self.config.seed + self.global_rank)
        elif self.global_rank < len(self._random_states):
            set_random_state(self._random_states[self.global_rank])
        else:  # resumed with more processes
            seed_all(self.config.seed + self.global_rank + self.batches)

    def transfer_batch_to_device(self, batch: ImageBatch, device: torch.device, dataloader_idx: int) -> ImageBatch:
        return batch._replace(images=batch.images.to(device, non_blocking=True))

    def on_train_batch_start(self, batch: ImageBatch, batch_idx: int) -> None:
        self.batches += 1
        self._names = batch.names
        self.skipped.add(batch.skipped)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        images = self._inputs(batch)
        output: VQVAEOutput = self.model(images)
        reconstruction = self.reconstruction_loss(output.images, images)
        loss: Tensor = reconstruction + output.loss
        step = -(-self.batches // self.config.accumulate)
        if self.adversary is not None and self.adversary.active(step):
            loss = loss + self.adversary.generator_loss(output.images, reconstruction, _last_weight(self.model.decoder))
            self._seen = images, output.images.detach()
        self._check_finite("loss", loss)
        if self.at_step_end and step % self.config.log_every == 0:
            self._publish(self._training_values(images, output, loss, reconstruction))
        return loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.average is not None:
            self.average.update_(self.model)
        if self._seen is not None and self.adversary is not None:
            loss = self.adversary.learn_(*self._seen)
            self._seen = None
            if self.steps_done % self.config.log_every == 0:
                self._write_log({"train/discriminator": float(loss)})

    def on_validation_epoch_start(self) -> None:
        self.validation = ValidationSums(self.model.quantizer, self.device)

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        assert self.validation is not None
        self.skipped.add(batch.skipped)
        if len(batch.images) == 0:
            return
        images = self._inputs(batch)
        output: VQVAEOutput = self.model(images)
        loss = self.reconstruction_loss(output.images, images) + output.loss
        self.validation.update(batch.images, output.images, output.indices, loss)

    def on_validation_epoch_end(self) -> None:
        assert self.validation is not None
        self._publish(self.validation.result())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, value in checkpoint["state_dict"].items():
            if value.is_floating_point() and not value.isfinite().all():
                raise self._not_finite(f"weight {name}")
        checkpoint[STATE] = {
            "batches": self.batches,
            "random": all_processes(random_state()),
            "adversary": None if self.adversary is None else self.adversary.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint[STATE]
        self.batches, self._random_states = state["batches"], state["random"]
        if self.adversary is not None:
            self.adversary.load_state_dict(state["adversary"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])

    def _inputs(self, batch: ImageBatch) -> Tensor:
        return to_float(batch.images).contiguous(memory_format=self.layout)

    def _training_values(
        self, images: Tensor, output: VQVAEOutput, loss: Tensor, reconstruction: Tensor
    ) -> dict[str, float]:
        with torch.no_grad():
            mse = (output.images - images).square().mean()
        values = {
            "train/loss": float(loss.detach()),
            "train/reconstruction": float(reconstruction.detach()),
            "train/quantizer": float(output.loss.detach()),
            "train/psnr": 10 * math.log10(4 / max(float(mse), 1e-12)),
        }
        quantizer = self.model.quantizer
        if quantizer is not None and output.indices is not None:
            places = max(1, quantizer.indices_per_position)
            counts = [
                count_codes(place, quantizer.codebook_size) for place in output.indices.reshape(-1, places).unbind(1)
            ]
            values["train/usage"] = quantizer.recent_usage()
            values["train/perplexity"] = sum(float(perplexity(counts_k)) for counts_k in counts) / places
            values |= {f"quantizer/{name}": value for name, value in quantizer.readings().items()}
        return values

    def _publish(self, values: dict[str, float]) -> None:
        """To the loggers, and to the callbacks that show or compare."""
        self._write_log(values)
        self.log_dict(values, logger=False, batch_size=1)

    def _write_log(self, values: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics(values, step=self.steps_done)

    def _check_latents(self, encoder: nn.Module, inputs: object, latents: Tensor) -> None:
        if encoder.training:
            self._check_finite("latents", latents)

    def _check_finite(self, what: str, value: Tensor) -> None:
        """Stop all processes together if a value is not finite in any of them."""
        if any_process(not bool(value.detach().isfinite().all()), value.device):
            raise self._not_finite(what)

    def _not_finite(self, what: str) -> NonFiniteError:
        step = -(-self.batches // self.config.accumulate)
        path = save_batch_names(self.run, step, what, self._names, self.global_rank == 0)
        return NonFiniteError(
            f"{what} became NaN or infinite at step {step}; the images of that step are listed in {path}; "
            "try a smaller --learning-rate or --clip 1"
        )


def _make_adversary(config: TrainConfig) -> Adversary | None:
    if config.adversarial_weight == 0:
        return None
    return Adversary(config.adversarial_weight, config.adversarial_start, config.learning_rate, config.betas)


def _last_weight(decoder: nn.Module) -> Tensor:
    """The weight of the decoder's last layer."""
    weights = [parameter for name, parameter in decoder.named_parameters() if name.endswith("weight")]
    return weights[-1]
