"""A restricted unpickler that only creates lists, dicts, bytes, numbers and arrays.

A pickle can import and call any function. Data files need only a few names of NumPy, so any other name raises an error
before it is imported.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedra.errors import DataError


class _Dtype:
    """A numeric dtype. NumPy's own dtype could describe objects, whose bytes would be read as addresses."""

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if not isinstance(code, str | bytes):
            raise pickle.UnpicklingError(f"it has an array of {code!r}")
        name = code if isinstance(code, str) else code.decode("ascii")
        self.dtype = np.dtype(name)
        if self.dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"it has an array of {self.dtype}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Set the byte order, and reject records."""
        order, parts = state[1], state[2:5]
        if parts != (None, None, None):
            raise pickle.UnpicklingError("it contains an array of records")
        self.dtype = self.dtype.newbyteorder(">" if order in (">", b">") else "<")


class _CheckedArray(np.ndarray[Any, Any]):
    """An array whose pickled state is checked before NumPy receives it."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, columns_first, content = state
        if not isinstance(kind, _Dtype) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it contains an array that is not numeric")
        if not all(isinstance(length, int) and length >= 0 for length in shape):
            raise pickle.UnpicklingError(f"it contains an array of shape {shape!r}")
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"it contains {len(content)} bytes for an array of shape {shape!r}")
        super().__setstate__((1, tuple(shape), kind.dtype, bool(columns_first), content))  # type: ignore[arg-type]


def _empty_array(*about: object) -> _CheckedArray:
    """Return an empty array, whose state pickle sets afterwards."""
    return _CheckedArray((0,), np.uint8)


def _encode(text: str, codec: str) -> bytes:
    """Decode bytes as Python 3 writes them in pickle protocol 2."""
    if codec != "latin1":
        raise pickle.UnpicklingError(f"it contains bytes in the encoding {codec!r}")
    return text.encode("latin1")


def _scalar(kind: _Dtype, value: bytes) -> Any:
    """Return a NumPy scalar."""
    if not isinstance(kind, _Dtype) or not isinstance(value, bytes) or len(value) != kind.dtype.itemsize:
        raise pickle.UnpicklingError("it contains a scalar that is not a number")
    return np.frombuffer(value, kind.dtype)[0]


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "numpy.ndarray",  # named in every array but never called
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty_array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
}


class RestrictedUnpickler(pickle.Unpickler):
    """Resolves only the allowed names."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data files must not use") from None


def read_pickle(content: bytes, path: Path, what: str) -> Any:
    """Unpickle `content` from `path`; `what` describes the expected file in an error message."""
    try:
        return RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path} is not {what} ({error}): delete it and download it again") from None


def read_batch(content: bytes, path: Path) -> dict[bytes, Any]:
    """Unpickle the dict of a CIFAR batch from `path`."""
    batch = read_pickle(content, path, "a pickled CIFAR batch")
    if not isinstance(batch, dict):
        raise DataError(f"{path} must contain a dict, got a {type(batch).__name__}: download it again")
    return batch
