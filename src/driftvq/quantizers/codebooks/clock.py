"""When the parts of a following codebook act: what changes slowly is not looked at in every step."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from driftvq.quantizers.codebooks.base import Stateful
from driftvq.quantizers.codebooks.parts import Now
from driftvq.quantizers.distributed import is_distributed
from driftvq.quantizers.finite import is_captured

INTERVAL, GLANCE_INTERVAL = 4, 8
"""Where a batch has two latents per code or more: steps between two relocations and two judgements of the drift, and
between two judgements of a drift at rest."""

LOOK_INTERVAL, FIRST_LOOKS = 16, 2
"""Steps between two looks at where the codes are and how they are spread, and steps at first in which each has one."""


class Clock(Stateful):
    """Counts the steps from one look to the next, from 0 to 15; the first two steps have a look each, at -2 and -1.

    Python counts, so that no device is asked. In a graph that is run again the device does: a number of Python's would
    be the same in every run. The ``phase`` is the count as it is saved and loaded.
    """

    training_state = ("phase",)
    counted_by_python: ClassVar[tuple[str, ...]] = ("count",)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("phase", torch.full((), -FIRST_LOOKS))
        self.count: int | None = None  # None: ask the buffer, which a loader may have written, or a graph

    def start_(self) -> None:
        """The codes are new."""
        self.phase.fill_(-FIRST_LOOKS)
        self.count = None if torch.compiler.is_compiling() else -FIRST_LOOKS

    def now(self, z_nd: Tensor, codes: int) -> Now:
        """What it is time for in a step with these latents and so many codes."""
        count = self._read(z_nd)
        look = count <= 0
        # With several latents per code in each step few codes lag or get lost in one. Processes have to agree, and
        # their batches may differ; and theirs want a gradient for every parameter in every step.
        if is_distributed() or len(z_nd) < 2 * codes:
            return Now(look=look)
        return Now(INTERVAL, look | (count % INTERVAL == 0), look | (count % GLANCE_INTERVAL == 0), look)

    def tick_(self, z_nd: Tensor) -> None:
        """One step later."""
        count = self._read(z_nd) + 1
        if isinstance(count, Tensor):
            self.phase.copy_(torch.where(count == LOOK_INTERVAL, 0, count))
        else:
            self.count = 0 if count == LOOK_INTERVAL else count

    def _read(self, z_nd: Tensor) -> Tensor | int:
        if is_captured(z_nd):
            if torch.compiler.is_compiling():  # else it would be in the graph, and set the clock back in every run
                self.pack_()
            self.agree_()
            return self.phase.clone()
        if self.count is None:
            self.count = int(self.phase)
        return self.count

    def pack_(self) -> None:
        """Tell the buffer, which is then saved or handed to other processes."""
        if self.count is not None:
            self.phase.fill_(self.count)

    def agree_(self) -> None:
        """The buffer was loaded, or is that of the first process."""
        self.count = None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.pack_()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *args: Any) -> None:
        state_dict, prefix = args[:2]
        super()._load_from_state_dict(*args)
        if f"{prefix}phase" in state_dict:
            self.agree_()
