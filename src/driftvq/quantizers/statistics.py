"""Statistics stay in float32 where a module is brought to half precision, which can neither count nor sum."""

from typing import Any, Self

import torch
from torch import Tensor, nn


class WithStatistics(nn.Module):
    """A module whose parts name in ``training_state`` the buffers that say how training goes on."""

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation; statistics that were loaded in half precision are raised to float32."""
        for module, name, buffer in self._statistics():
            module._buffers[name] = buffer.to(torch.promote_types(buffer.dtype, torch.float32))
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Half precision is for codes and networks: statistics stay in float32, since it cannot count them."""
        before = self._statistics()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module, name, buffer in before:
            applied = getattr(module, name)
            if applied.dtype in (torch.float16, torch.bfloat16):
                module._buffers[name] = buffer.to(applied.device)
        return self

    def _statistics(self) -> list[tuple[nn.Module, str, Tensor]]:
        """The floating-point buffers that say how training goes on."""
        return [
            (module, name, buffer)
            for module in self.modules()
            for name in getattr(module, "training_state", ())
            if (buffer := module._buffers.get(name)) is not None and buffer.is_floating_point()
        ]
