"""Upload rules, the parts that make a client's change smaller before it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedra.core.capabilities import ClientState
from fedra.core.model import Weights
from fedra.core.part import Part
from fedra.core.tree import Params, Tree

if TYPE_CHECKING:
    from fedra.core.view import Local


class UploadRule(Part, ClientState, abstract=True):
    """Rounds a client's change to fewer bits or fewer entries. Subclasses define `compress`, `pack` and `unpack`.

    What the server combines is the rounded change, in the simulator as in a federation, where it travels packed. With
    `keeps_error`, a client adds what rounding took away to its change of the next round.

    Example:
        ```python
        class Signs(UploadRule):
            keeps_error = True

            def compress(self, change):
                return change.sign() * change.abs().mean()
        ```
    """

    keeps_error: ClassVar[bool] = False

    def compress(self, change: Tensor) -> Tensor:
        """The change of one parameter as the server will read it.

        Args:
            change: The change of one parameter of one client.

        Returns:
            A tensor of the same shape and type.
        """
        raise TypeError(f"{type(self).__name__} must define compress")

    def pack(self, change: Tensor) -> Params:
        """A compressed change as it travels.

        Args:
            change: A result of `compress`.

        Returns:
            Small tensors by name.
        """
        return {"values": change}

    def unpack(self, packed: Params, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """The inverse of `pack`, without any loss.

        Args:
            packed: A result of `pack`, which came from elsewhere: anything that does not fit raises `ValueError`.
            shape: Shape of the parameter.
            dtype: Type of the parameter.

        Returns:
            The compressed change.
        """
        return packed["values"]

    def packed_bytes(self, change: Tensor) -> int:
        """The bytes of a change as it travels.

        Args:
            change: A result of `compress`.

        Returns:
            The number of bytes.
        """
        return sum(value.nbytes for value in self.pack(change).values())

    def init_client(self, origin: Weights) -> Tree:
        return {name: torch.zeros_like(value) for name, value in origin.params.items()} if self.keeps_error else {}

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        error = local.client.memory.get(self.name, {})
        change = {name: local.weights.params[name] - local.client.origin.params[name] for name in local.client.trained}
        if self.keeps_error:
            change = {name: value + error[name] for name, value in change.items()}
        sent = {name: self.compress(value) for name, value in change.items()}
        if not self.keeps_error:
            return {}, sent
        kept = {name: change[name] - sent[name] if name in change else value for name, value in error.items()}
        return kept, sent
