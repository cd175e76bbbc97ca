"""A reader of pickles that can make lists, dicts, bytes, numbers and arrays, and nothing else.

A pickle may name any function of the machine and call it. Files of data need a few names of numpy; a file that asks
for any other is refused before the call.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedra.errors import DataError


class _Kind:
    """A type of numbers. numpy's own could be told to hold objects, whose bytes in a file would be addresses."""

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if not isinstance(code, str | bytes):
            raise pickle.UnpicklingError(f"it has an array of {code!r}")
        name = code if isinstance(code, str) else code.decode("ascii")
        self.dtype = np.dtype(name)
        if self.dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"it has an array of {self.dtype}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """The byte order; plain numbers have no parts."""
        order, parts = state[1], state[2:5]
        if parts != (None, None, None):
            raise pickle.UnpicklingError("it has an array of records")
        self.dtype = self.dtype.newbyteorder(">" if order in (">", b">") else "<")


class _Numbers(np.ndarray[Any, Any]):
    """An array in the making: what a file says of it is looked at before numpy is told."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, columns_first, content = state
        if not isinstance(kind, _Kind) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it has an array of something else than numbers")
        if not all(isinstance(length, int) and length >= 0 for length in shape):
            raise pickle.UnpicklingError(f"it has an array of shape {shape!r}")
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"it has {len(content)} bytes for an array of shape {shape!r}")
        super().__setstate__((1, tuple(shape), kind.dtype, bool(columns_first), content))  # type: ignore[arg-type]


def _begun(*about: object) -> _Numbers:
    """An empty array; its shape and contents come after it."""
    return _Numbers((0,), np.uint8)


def _encoded(text: str, codec: str) -> bytes:
    """How Python 3 writes bytes into a pickle of protocol 2."""
    if codec != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in the encoding {codec!r}")
    return text.encode("latin1")


def _scalar(kind: _Kind, value: bytes) -> Any:
    """A single truth value or number of numpy's."""
    if not isinstance(kind, _Kind) or not isinstance(value, bytes) or len(value) != kind.dtype.itemsize:
        raise pickle.UnpicklingError("it has a scalar that is no number")
    return np.frombuffer(value, kind.dtype)[0]


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "numpy.ndarray",  # named in every array, and never called
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encoded,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _begun for core in ("core", "_core")},
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
