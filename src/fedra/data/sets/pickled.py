"""A reader of the pickled CIFAR batches that can make dicts, lists, bytes and arrays, and nothing else.

A pickle may name any function of the machine and call it. These files need three names of numpy; a file that
asks for any other is refused before the call.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedra.errors import DataError

_RECONSTRUCT = np.empty(0).__reduce__()[0]
ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


class RestrictedUnpickler(pickle.Unpickler):
    """Resolves the admitted names and refuses the rest."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs") from None


def read_batch(content: bytes, path: Path) -> dict[bytes, Any]:
    """The dict in one pickled batch; `path` is where `content` came from."""
    try:
        batch = RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path} is not a pickled CIFAR batch ({error}): delete it and fetch it again") from None
    if not isinstance(batch, dict):
        raise DataError(f"{path} holds a {type(batch).__name__} where a CIFAR batch is a dict: fetch it again")
    return batch
