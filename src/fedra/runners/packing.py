"""Objects with tensors as pickled bytes and separate arrays, which Ray shares between the workers of a node.

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
    """An object pickled without its tensors, and the tensors as arrays."""

    text: bytes
    arrays: list[np.ndarray]


def pack(value: Any, pickler: type[pickle.Pickler]) -> Packed:
    """Separate a value from its tensors; a pickler such as cloudpickle's supports classes of scripts and notebooks."""
    kind: Any = pickler
    arrays: list[np.ndarray] = []
    file = io.BytesIO()
    _without_tensors(kind)(file, arrays).dump(value)
    return Packed(file.getvalue(), arrays)


@cache
def _without_tensors(pickler: Any) -> Any:
    """A pickler that collects tensors. The class is cached: one class per message would form a reference cycle and
    keep the tensors alive until garbage collection.
    """

    class WithoutTensors(pickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, arrays: list[np.ndarray]) -> None:
            super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
            self._arrays = arrays
            self._seen: dict[int, tuple[int, Tensor]] = {}

        def persistent_id(self, value: Any) -> int | None:
            if not _is_plain(value):
                return None
            if id(value) not in self._seen:
                # Keep a reference to the tensor: the id of a temporary one could be reused.
                self._seen[id(value)] = len(self._arrays), value
                self._arrays.append(value.detach().contiguous().numpy())
            return self._seen[id(value)][0]

    return WithoutTensors


class _WithTensors(pickle.Unpickler):
    """An unpickler that puts the tensors back."""

    def __init__(self, text: bytes, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(text))
        self._tensors = tensors

    def persistent_load(self, index: int) -> Tensor:
        return self._tensors[index]


def unpack(packed: Packed) -> Any:
    """Restore a value; its tensors share memory with the arrays and must only be read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # data and received models are never written
        tensors = [torch.from_numpy(array) for array in packed.arrays]
    return _WithTensors(packed.text, tensors).load()


def _is_plain(value: Any) -> bool:
    """Whether NumPy can hold the value; a parameter is pickled as an object that contains a plain tensor."""
    return (
        type(value) is Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.dtype is not torch.bfloat16
    )
