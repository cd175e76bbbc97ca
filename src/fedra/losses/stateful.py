"""A loss as a module that stores its own state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from fedra.losses.angular_loss import AngularLoss


class Stateful(nn.Module):
    """A loss with its running state as buffers and its trained parameters as parameters.

    Every call in training mode updates the state; after `eval()` it does not change.

    Args:
        loss: Any loss of `fedra.losses`.
        weight: The class vectors (C, d), which give the shapes of state and parameters.

    Example:
        >>> from fedra.losses import CurricularFace
        >>> features, weight, labels = torch.randn(8, 16), torch.randn(4, 16), torch.arange(8) % 4
        >>> loss = Stateful(CurricularFace(), weight)
        >>> loss(features, weight, labels).shape
        torch.Size([])
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
        """The running statistics by name."""
        return {name: self.get_buffer(name) for name in self._names}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast, but keep the state's precision: in 16 bits a counter stops at 256 or 2048."""
        before = self.state
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in before.items():
            now = self.get_buffer(name)
            if now.dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, value.to(now.device))
        return self

    def forward(
        self, features: Tensor, weight: Tensor, labels: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean loss of a batch.

        Args:
            features: Features (B, d).
            weight: Class vectors (C, d).
            labels: Class indices (B,).
            generator: Draws random margins; None (the default) is torch's default generator.

        Returns:
            A scalar to call `backward()` on.
        """
        learned = dict(self.learned.items())
        if not self.training:
            return self.loss(features, weight, labels, state=self.state, learned=learned, generator=generator)
        losses, state = self.loss.step(features, weight, labels, self.state, learned=learned, generator=generator)
        for name, value in state.items():
            setattr(self, name, value)  # not in place: the backward pass may need the old value
        return losses.mean()
