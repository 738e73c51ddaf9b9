"""Why a run stops before its last step."""

import json
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined] # it is there, says its documentation

from driftvq.models import VQVAE
from driftvq.training.processes import all_processes, any_process, rank

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingStoppedError(RuntimeError):
    """The run ended before its last step."""


class InterruptedTrainingError(TrainingStoppedError):
    """Somebody asked the run to stop, and a checkpoint was saved."""

    def __init__(self, step: int, run: Path) -> None:
        super().__init__(f"stopped after step {step}, everything is saved in {run}")
        self.step, self.run = step, run


class NonFiniteError(TrainingStoppedError):
    """A loss, the latents or the weights became NaN or infinite."""


class StopSignals:
    """Turns the first Ctrl-C or SIGTERM into a request, :attr:`requested`; further ones go where they went before."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
        elif callable(self._before[number]):
            self._before[number](number, frame)
        else:
            raise KeyboardInterrupt


class FiniteGuard:
    """Stops all processes together when a number is not finite, and lists the images that they were working on.

    Args:
        run: the run's folder, where the list goes.
        model: whose latents are watched in training, before they can reach the codebook.
    """

    def __init__(self, run: Path, model: VQVAE) -> None:
        self.run, self.step = run, 0
        self.names: Sequence[str] = ()

        def check_latents(encoder: nn.Module, inputs: object, latents: Tensor) -> None:
            if encoder.training:
                self.check("latents", latents)

        model.encoder.register_forward_hook(check_latents)

    @contextmanager
    def at(self, step: int, names: Sequence[str]) -> Iterator[None]:
        """Inside, these images are worked on; a quantizer that finds no finite numbers is an error of theirs."""
        self.step, self.names = step, names
        try:
            yield
        except (ValueError, LinAlgError) as error:
            if isinstance(error, ValueError) and "finite" not in str(error):
                raise
            raise self._error("the quantizer's numbers", [list(names)]) from error

    def check(self, what: str, value: Tensor) -> None:
        """Stop if a value is not finite in any process."""
        if any_process(not bool(value.detach().isfinite().all()), value.device):
            raise self._error(what, all_processes(list(self.names)))

    def check_weights(self, model: nn.Module) -> None:
        """Stop if a weight is not finite, so that no such checkpoint is written."""
        weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        broken = [name for name, value in weights.items() if not value.isfinite().all()]
        if any_process(bool(broken), next(iter(weights.values())).device):
            raise self._error(f"weight {', '.join(broken[:1])}".rstrip(), all_processes(list(self.names)))

    def _error(self, what: str, names: list[list[str]]) -> NonFiniteError:
        path = self.run / f"nan-step-{self.step}.json"
        if rank() == 0 or len(names) == 1:
            report = {"step": self.step, "not_finite": what, "images": [name for batch in names for name in batch]}
            path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if len(names) > 1:
            all_processes(None)  # no process is gone before the list is written
        return NonFiniteError(
            f"{what} became NaN or infinite at step {self.step}; the images of that step are listed in {path}; "
            "try a smaller --learning-rate or --clip 1"
        )
