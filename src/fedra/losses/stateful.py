"""A loss as a module, for a training loop that would rather not carry state by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from fedra.losses.angular_loss import AngularLoss


class Stateful(nn.Module):
    """`loss` with its running state as buffers and its trained parameters as parameters.

    In training every call advances the state; after `eval()` it stays as it is.
    """

    def __init__(self, loss: AngularLoss, weight: Tensor) -> None:
        super().__init__()
        self.loss = loss
        self._names = tuple(loss.init_state(weight))
        for name, value in loss.init_state(weight).items():
            self.register_buffer(name, value)
        self.learned = nn.ParameterDict(loss.init_learned(weight.detach()))

    @property
    def state(self) -> dict[str, Tensor]:
        return {name: self.get_buffer(name) for name in self._names}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast; the state keeps its precision, for in 16 bits a counter stops at 256 or 2048."""
        before = self.state
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, kept in before.items():
            now = self.get_buffer(name)
            if now.dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, kept.to(now.device))
        return self

    def forward(
        self, features: Tensor, weight: Tensor, labels: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """The mean loss."""
        learned = dict(self.learned.items())
        if not self.training:
            return self.loss(features, weight, labels, state=self.state, learned=learned, generator=generator)
        losses, state = self.loss.step(features, weight, labels, self.state, learned=learned, generator=generator)
        for name, value in state.items():
            setattr(self, name, value)  # not in place: the backward pass may need what it was
        return losses.mean()
