"""Number formats of a model: dtype of the weights, dtype of the passes, and a loss scale for small gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedra.core import tree
from fedra.core.precision_trial import dtype_name, instructions_for
from fedra.core.tree import Params
from fedra.errors import ConfigError

PrecisionName = Literal["float32", "bfloat16", "float16", "float64"]

Wanted = Literal["float32", "bfloat16", "float16", "float64", "auto"]
"""A precision, or `auto` for the fastest safe one."""


@dataclass(frozen=True)
class Precision:
    """Weights, optimizer and aggregation use the dtype `weights`; forward passes run in `passes` (autocast).

    Features and logits are converted back to `weights`, so losses, margins and norms are computed in that dtype. The
    gradient is taken of the loss times `loss_scale` and divided by it again. A power of two adds no rounding, and it
    keeps gradients above the smallest float16 number (Micikevicius et al., ICLR 2018).
    """

    weights: torch.dtype
    passes: torch.dtype
    loss_scale: float = 1.0

    @classmethod
    def of(cls, module: nn.Module) -> Precision:
        """The module's own dtype throughout."""
        own = next(module.parameters(), torch.zeros(0)).dtype
        return cls(own, own)

    @property
    def mixed(self) -> bool:
        """Whether passes run in another dtype than the weights."""
        return self.passes != self.weights

    def casting(self, device: torch.device) -> AbstractContextManager[None]:
        """The autocast context of a pass. Each weight is cast once per pass, so the cast cache is disabled."""
        if not self.mixed:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.passes, cache_enabled=False)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to differentiate."""
        return loss if self.loss_scale == 1.0 else loss * self.loss_scale

    def unscaled(self, gradient: Params) -> Params:
        """The gradient of the loss, from that of the scaled loss."""
        return gradient if self.loss_scale == 1.0 else tree.scale(gradient, 1 / self.loss_scale)


PRECISIONS: dict[PrecisionName, Precision] = {
    "float32": Precision(torch.float32, torch.float32),
    "bfloat16": Precision(torch.float32, torch.bfloat16),
    "float16": Precision(torch.float32, torch.float16, loss_scale=2.0**7),
    "float64": Precision(torch.float64, torch.float64),
}


def build_precision(name: Wanted, device: torch.device) -> Precision:
    """The precision of that name, checked with a small matrix product on the device.

    Half precision on a CPU is tried in a child process first, since some processors end a process that computes in it;
    see `fedra.core.precision_trial`. `auto` is float32 until a choice is made.
    """
    precision = PRECISIONS["float32" if name == "auto" else name]
    if precision.mixed and device.type == "cpu":
        instructions_for(precision.passes)
    try:
        ones = torch.ones(2, 2, dtype=precision.weights, device=device)
        with precision.casting(device):
            found = (ones @ ones).cpu().dtype
        reason = f"it computes in {dtype_name(found)}"
    except (RuntimeError, TypeError) as error:
        found, reason = None, str(error).partition("\n")[0]
    if found != precision.passes:
        raise ConfigError(
            f"precision must be supported by the device '{device}', got '{name}' ({reason}): set 'float32'"
        )
    return precision


def describe_instructions(precision: Precision, device: torch.device) -> str | None:
    """A sentence on the smaller instruction set that a precision needs on this processor; None if it needs none."""
    if not precision.mixed or device.type != "cpu" or (used := instructions_for(precision.passes)) is None:
        return None
    return (
        f"precision: a trial of {dtype_name(precision.passes)} with all instructions of this processor died, so the "
        f"run uses {used} and may be no faster than float32"
    )
