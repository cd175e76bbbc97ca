"""A reader of pickles that can make lists, dicts, bytes, numbers and arrays, and nothing else.

A pickle may name any function of the machine and call it. Files of data need a few names of numpy; a file that asks
for any other is refused before the call.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedra.errors import DataError

_RECONSTRUCT = np.empty(0).__reduce__()[0]


def _encoded(text: str, codec: str) -> bytes:
    """How Python 3 writes bytes into a pickle of protocol 2."""
    if codec != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in the encoding {codec!r}")
    return text.encode("latin1")


def _scalar(kind: np.dtype[Any], value: bytes) -> Any:
    """A single truth value or number of numpy's."""
    if kind.kind not in "biuf" or len(value) != kind.itemsize:
        raise pickle.UnpicklingError(f"it has a scalar of type {kind}")
    return np.frombuffer(value, kind)[0]


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encoded,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
}


class RestrictedUnpickler(pickle.Unpickler):
    """Resolves the admitted names and refuses the rest."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no file of data needs") from None


def read_pickle(content: bytes, path: Path, what: str) -> Any:
    """What the pickle `content` from `path` holds; `what` it should be ends in the sentence about a bad one."""
    try:
        return RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path} is not {what} ({error}): delete it and fetch it again") from None


def read_batch(content: bytes, path: Path) -> dict[bytes, Any]:
    """The dict in one pickled CIFAR batch; `path` is where `content` came from."""
    batch = read_pickle(content, path, "a pickled CIFAR batch")
    if not isinstance(batch, dict):
        raise DataError(f"{path} holds a {type(batch).__name__} where a CIFAR batch is a dict: fetch it again")
    return batch
