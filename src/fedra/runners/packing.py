"""Objects full of tensors as few bytes and many arrays, which Ray's object store shares between the workers of a node.

Torch's own pickling would copy every tensor into every worker.
"""

from __future__ import annotations

import io
import pickle
import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Packed(NamedTuple):
    """An object pickled without its tensors, and these as arrays."""

    text: bytes
    arrays: list[np.ndarray]


def pack(value: Any, pickler: type[pickle.Pickler]) -> Packed:
    """Take a value apart; a pickler like cloudpickle's knows what to do with classes of a script or a notebook."""
    kind: Any = pickler
    arrays: list[np.ndarray] = []
    file = io.BytesIO()
    _without_tensors(kind)(file, arrays).dump(value)
    return Packed(file.getvalue(), arrays)


@cache
def _without_tensors(pickler: Any) -> Any:
    """A pickler that puts tensors aside. One class for all messages: a class of each message's own would be a cycle,
    and keep its tensors until the garbage is collected.
    """

    class WithoutTensors(pickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, arrays: list[np.ndarray]) -> None:
            super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
            self._arrays = arrays
            self._seen: dict[int, tuple[int, Tensor]] = {}

        def persistent_id(self, thing: Any) -> int | None:
            if not _is_plain(thing):
                return None
            if id(thing) not in self._seen:
                # The tensor is kept with its place: a passing one's number would soon be another's.
                self._seen[id(thing)] = len(self._arrays), thing
                self._arrays.append(thing.detach().contiguous().numpy())
            return self._seen[id(thing)][0]

    return WithoutTensors


class _WithTensors(pickle.Unpickler):
    """Puts tensors back in."""

    def __init__(self, text: bytes, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(text))
        self._tensors = tensors

    def persistent_load(self, place: int) -> Tensor:
        return self._tensors[place]


def unpack(packed: Packed) -> Any:
    """Put a value together again; its tensors are the arrays themselves, and must only be read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # nobody writes to data or a received model
        tensors = [torch.from_numpy(array) for array in packed.arrays]
    return _WithTensors(packed.text, tensors).load()


def _is_plain(thing: Any) -> bool:
    """Whether it is a tensor that NumPy can hold; parameters are pickled around theirs."""
    return (
        type(thing) is Tensor
        and thing.device.type == "cpu"
        and thing.layout is torch.strided
        and thing.dtype is not torch.bfloat16
    )
