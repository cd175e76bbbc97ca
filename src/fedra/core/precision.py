"""In which numbers a model is reckoned: the weights' type, the type of its passes, and a scale for small gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedra.core import tree
from fedra.core.tree import Params
from fedra.errors import ConfigError

PrecisionName = Literal["float32", "bfloat16", "float16", "float64"]


@dataclass(frozen=True)
class Precision:
    """Weights, optimizer and aggregation are in `weights`; the model's passes are cast to `passes` (autocast).

    A pass gives its features and logits back in `weights`, so that every loss, margin and norm is reckoned there.
    `loss_scale` multiplies the loss before its gradient is taken and is divided out of it: a power of two, which
    changes no digit and lifts gradients over float16's smallest number (Micikevicius et al., ICLR 2018).
    """

    weights: torch.dtype
    passes: torch.dtype
    loss_scale: float = 1.0

    @classmethod
    def of(cls, module: nn.Module) -> Precision:
        """As the module is."""
        own = next(module.parameters(), torch.zeros(0)).dtype
        return cls(own, own)

    @property
    def mixed(self) -> bool:
        """Whether passes are reckoned in another type than the weights."""
        return self.passes != self.weights

    def casting(self, device: torch.device) -> AbstractContextManager[None]:
        """What a pass runs in. A weight is cast once per pass, so that a cache of casts would never be asked."""
        if not self.mixed:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.passes, cache_enabled=False)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss whose gradient is taken."""
        return loss if self.loss_scale == 1.0 else loss * self.loss_scale

    def unscaled(self, gradient: Params) -> Params:
        """The gradient of the loss, given that of the scaled one."""
        return gradient if self.loss_scale == 1.0 else tree.scale(gradient, 1 / self.loss_scale)


PRECISIONS: dict[PrecisionName, Precision] = {
    "float32": Precision(torch.float32, torch.float32),
    "bfloat16": Precision(torch.float32, torch.bfloat16),
    "float16": Precision(torch.float32, torch.float16, loss_scale=2.0**7),
    "float64": Precision(torch.float64, torch.float64),
}


def build_precision(name: PrecisionName, device: torch.device) -> Precision:
    """The precision of that name, after a small product on the device has shown that it can be had there."""
    precision = PRECISIONS[name]
    try:
        some = torch.ones(2, 2, dtype=precision.weights, device=device)
        with precision.casting(device):
            found = (some @ some).cpu().dtype
        reason = f"it reckons in {str(found).removeprefix('torch.')} instead"
    except (RuntimeError, TypeError) as error:
        found, reason = None, str(error).partition("\n")[0]
    if found != precision.passes:
        raise ConfigError(f"precision = '{name}' cannot be used on the device '{device}' ({reason}): set 'float32'")
    return precision
