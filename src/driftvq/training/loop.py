"""A training run, to be read from top to bottom: data → model → loss → optimizer → logs → validation → checkpoint.

Lightning Fabric decides where it runs: devices, processes, precision. What happens in a step is written here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.fabric import Fabric
from torch import Tensor

from driftvq.data import ImageBatch, to_float, to_uint8
from driftvq.drift_meter import DriftMeter
from driftvq.drift_meter.probing import undisturbed
from driftvq.models import VQVAE
from driftvq.models.afterwards import SETTLING_PASSES, Repeated, rest_, settle_, settling_batches
from driftvq.progress import Progress
from driftvq.training.checkpoints import random_state, save_checkpoint, seed_all, set_random_state
from driftvq.training.config import TrainConfig
from driftvq.training.fabric import all_processes, any_process, memory_layout, pick_precision
from driftvq.training.logs import RunLog, SkippedImages, shown_values, training_values
from driftvq.training.objective import Adversary, Objective, ReconstructionLoss, StepOutput
from driftvq.training.stopping import FiniteGuard, InterruptedTrainingError, stop_signals
from driftvq.training.validation import BestModel, ValidationSums, WeightAverage

if TYPE_CHECKING:
    from driftvq.training.run import RunImages

Say = Callable[[str], None]
SAMPLES = 16  # validation images whose reconstructions are shown, and that the drift meter looks at


class Probe(NamedTuple):
    """A look at the model after certain steps, logged as ``probe/…``."""

    steps: Collection[int]
    read: Callable[[VQVAE], Mapping[str, float]]


class TrainingLoop:
    """A run in one process, its parts in the order in which a step meets them."""

    def __init__(
        self, config: TrainConfig, run: Path, steps: int, images: "RunImages", model: VQVAE, fabric: Fabric, say: Say,
        probe: Probe | None = None,
    ) -> None:  # fmt: skip
        if config.warm_up and fabric.world_size > 1:
            raise ValueError(f"warm_up={config.warm_up} works in one process, got {fabric.world_size}")
        self.config, self.run, self.steps, self.fabric, self.say, self.probe = config, run, steps, fabric, say, probe
        self.step, self.images, self.model = 0, images, model
        images.rank, images.world_size = fabric.global_rank, fabric.world_size
        model.to(memory_format=memory_layout(config))  # type: ignore[call-overload]
        settings = (config.adversarial_weight, config.adversarial_start, config.learning_rate, config.betas)
        self.adversary = Adversary(*settings, fabric.device) if config.adversarial_weight else None
        reconstruction = ReconstructionLoss(config).to(fabric.device)
        self.objective = Objective(model, config, reconstruction, self.adversary)
        self.network = fabric.setup_module(self.objective)
        self.resting = False
        parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        # A fused optimizer undoes the scaling of float16 by itself, too late for clipping.
        fused = pick_precision(config) != "16-mixed"
        adam = torch.optim.Adam(parameters, lr=config.learning_rate, betas=config.betas, fused=fused)
        self.optimizer: Any = fabric.setup_optimizers(adam)
        self.average = WeightAverage(model, config.weight_ema) if config.weight_ema > 0 else None
        self.evaluated = model if self.average is None else self.average.module
        self.validation = Objective(self.evaluated, config, reconstruction)
        self.samples = images.first_val_images(SAMPLES).images
        shown = to_float(self.samples).to(fabric.device)
        self.meter = DriftMeter(model.latents, model.quantizer, shown, channel_first=True)
        self.guard = FiniteGuard(run, model)
        self.skipped, self.best = SkippedImages(run), BestModel(run, config)

    @property
    def finished(self) -> bool:
        """Whether no step is left to take."""
        return self.step >= self.steps or self.best.patience_is_over

    def run_from(self, checkpoint: Path | None) -> None:
        """Train from a checkpoint, or from the beginning, to the last step."""
        if checkpoint is not None:
            self.load(checkpoint)
        else:  # from here on random numbers depend on the seed and the step alone
            seed_all(self.config.seed + self.fabric.global_rank)
        if self.finished:
            self.say(f"{self.run} is already at step {self.step} of {self.steps}: nothing to do")
            return
        first = self.fabric.global_rank == 0
        self.log = RunLog(self.run if first else None, self.step, self.config.tensorboard)
        progress = Progress("step", self.steps, "steps", visible=first)
        batches = self.images.train_batches(self.step * self.config.accumulate)
        with closing(self.log), progress, batches, stop_signals() as stop_requested:
            stream = iter(batches)
            progress.show(self.step)
            if self.step == 0:
                self.measure_drift()
            while not self.finished:
                self.train_step(stream)
                self.measure_drift()
                self.look()
                if self.step % self.config.val_every == 0 or self.step == self.steps:
                    self.validate()
                progress.show(self.step, shown_values(self.log.latest, progress.wide), last=self.finished)
                self.keep(any_process(stop_requested(), self.fabric.device))
            if any_process(stop_requested(), self.fabric.device):  # asked for during the last checkpoint
                raise InterruptedTrainingError(self.step, self.run)

    def train_step(self, batches: Iterator[ImageBatch]) -> None:
        """One step of the optimizer, on ``accumulate`` batches."""
        config, self.step = self.config, self.step + 1
        if not self.resting and self.step > self.steps - round(config.settle * self.steps):
            self.settle()
        adversary = self.adversary if self.adversary is not None and self.adversary.active(self.step) else None
        names, images, rebuilt = list[str](), list[Tensor](), list[Tensor]()
        for left in reversed(range(config.accumulate)):
            batch = next(batches)
            self.skipped.add(batch.skipped)
            names += batch.names
            with self.guard.at(self.step, names), self.fabric.no_backward_sync(self.network, enabled=left > 0):
                pixels = self.fabric.to_device(batch.images)
                output: StepOutput = self.network(pixels, adversary is not None, self.step > config.warm_up)
                self.guard.check("loss", output.loss)
                self.fabric.backward(output.loss / config.accumulate)
            if adversary is not None:
                images.append(output.images)
                rebuilt.append(output.rebuilt.detach())
        if config.clip > 0:
            self.fabric.clip_gradients(self.network, self.optimizer, max_norm=config.clip, error_if_nonfinite=False)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.model)
        discriminator = None
        if adversary is not None:
            discriminator = adversary.learn_(torch.cat(images), torch.cat(rebuilt), config.accumulate)
        if self.step % config.log_every == 0:
            self.log.write(self.step, training_values(output, self.model.quantizer, discriminator))

    def settle(self) -> None:
        """Before the last steps: the encoder stands still from now on, and the codebook goes to k-means."""
        together, left = self.config.batch_size * self.fabric.world_size, self.steps - self.step + 1
        count = settling_batches(self.model, self.config.size, together, left)

        def inputs() -> Iterator[Tensor]:
            for batch in self.images.resting_batches(count):
                yield self.validation.inputs(self.fabric.to_device(batch.images))

        with self.fabric.autocast():
            self.say(settle_(self.model, Repeated(inputs), SETTLING_PASSES))
        if self.average is not None:  # what does not move any more needs no average
            self.average.module.encoder.load_state_dict(self.model.encoder.state_dict())
            if self.model.quantizer is not None:
                self.average.module.quantizer.load_state_dict(self.model.quantizer.state_dict())
        self.rest()

    def rest(self) -> None:
        """From now on the decoder learns alone."""
        rest_(self.model)
        self.resting = True
        if self.fabric.world_size > 1:  # DistributedDataParallel waits for the gradients that it knew when it was made
            self.network = self.fabric.setup_module(self.objective)

    def measure_drift(self) -> None:
        """Every so often, and before the first step: how far the latents moved, and how the codes followed."""
        if self.config.probe_every == 0 or self.step % self.config.probe_every or self.model.quantizer is None:
            return
        self.log.write_drift(self.step, self.meter.measure(), self.meter)

    def look(self) -> None:
        """At the steps that the caller of the training named: what it wants to know of the model."""
        if self.probe is not None and self.step in self.probe.steps:
            with undisturbed([self.evaluated]):
                values = self.probe.read(self.evaluated)
            self.log.write(self.step, {f"probe/{name}": value for name, value in values.items()})

    def validate(self) -> None:
        """Measure the model on images that it is not trained on; keep it if it is the best so far."""
        sums = ValidationSums(self.model.quantizer, self.fabric.device)
        with undisturbed([self.evaluated]), self.images.val_batches() as batches:
            for batch in batches:
                self.skipped.add(batch.skipped)
                pixels = self.fabric.to_device(batch.images)
                with self.fabric.autocast():
                    output = self.validation(pixels)
                sums.update(pixels, output.rebuilt, output.indices, output.loss)
            rebuilt = self.evaluated.reconstruct(to_float(self.samples).to(self.fabric.device))
            values = sums.result()
            self.log.write(self.step, values)
            self.log.write_sample(self.step, self.samples, to_uint8(rebuilt).cpu())
            if self.best.judge(self.step, values) and self.fabric.global_rank == 0:
                self.best.save(self.evaluated)
        if self.best.patience_is_over:
            self.say(f"early stop: {self.best.waited} validations without a better {self.config.monitor}")

    def keep(self, stop: bool) -> None:
        """Every so often, at the end, and when asked to stop: write what a resumed run goes on from."""
        if not (stop or self.finished or self.step % self.config.checkpoint_every == 0):
            return
        self.guard.check_weights(self.model)
        self.log.flush()
        state: dict[str, Any] = {"model": self.network, "optimizer": self.optimizer}
        state |= {"step": self.step, "resting": self.resting, "random": all_processes(random_state())}
        state["parts"] = {name: part.state_dict() for name, part in self.parts().items()}
        save_checkpoint(self.fabric, self.run, self.step, state)
        if stop:
            raise InterruptedTrainingError(self.step, self.run)

    def parts(self) -> dict[str, Any]:
        """What has a state beside the model and its optimizer."""
        parts: dict[str, Any] = {"scaler": self.fabric.strategy.precision, "adversary": self.adversary}
        parts |= {"average": self.average, "meter": self.meter, "best": self.best}
        return {name: part for name, part in parts.items() if part is not None}

    def load(self, checkpoint: Path) -> None:
        rest = self.fabric.load(checkpoint, {"model": self.network, "optimizer": self.optimizer}, weights_only=True)
        self.step = rest["step"]
        if rest["resting"]:
            self.rest()
        for name, part in self.parts().items():
            part.load_state_dict(rest["parts"][name])
        if self.fabric.global_rank < len(rest["random"]):
            set_random_state(rest["random"][self.fabric.global_rank])
        else:  # more processes than before
            seed_all(self.config.seed + self.fabric.global_rank + self.step)
