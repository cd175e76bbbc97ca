"""Pickles of data: plain numbers come out as they went in, and nothing that could hold an address does."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedra.data.sets.pickled import read_pickle
from fedra.errors import DataError


class Call:
    """Pickled as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def read(value: Any, protocol: int = 4) -> Any:
    return read_pickle(pickle.dumps(value, protocol=protocol), Path("some.bin"), "a file of data")


RECONSTRUCT = np.empty(0).__reduce__()[0]
NUMBERS = {
    "bytes": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big-endian": np.arange(4, dtype=">i4"),
    "truth": np.array([True, False]),
    "one": np.array(3.5),
}


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_come_out_as_they_went_in(name: str, protocol: int) -> None:
    found = read([NUMBERS[name], np.float32(2.5), b"text"], protocol)
    assert np.array_equal(found[0], NUMBERS[name])
    assert found[0].dtype == NUMBERS[name].dtype.newbyteorder("=")
    assert found[1:] == [2.5, b"text"]


HOSTILE = {
    "objects by address": Call(np.ndarray, ((1,), np.dtype("O"), b"A" * 8)),
    "numbers by a call": Call(np.ndarray, ((1 << 40,), np.dtype("u1"), b"A" * 8)),
    "objects": np.array([[], {}], dtype=object),
    "objects by state": Call(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), np.dtype("O"), False, b"A" * 8)),
    "records": np.zeros(2, dtype=[("a", "u1"), ("b", "u4")]),
    "records by state": Call(
        RECONSTRUCT,
        (np.ndarray, (0,), b"b"),
        (1, (1,), Call(np.dtype, ("u1", False, True), (3, "|", None, ("a",), {"a": 1}, 8, 1, 63)), False, b"A" * 8),
    ),
    "too few bytes": Call(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (9,), np.dtype("u1"), False, b"A")),
    "less than nothing": Call(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (-1, -1), np.dtype("u1"), False, b"A")),
    "dates": np.array(["2024-01-01"], dtype="datetime64[D]"),
    "an object scalar": Call(np.float64(0).__reduce__()[0], (np.dtype("O"), b"A" * 8)),
}


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_number_is_refused(name: str, protocol: int) -> None:
    with pytest.raises(DataError, match=r"some.bin is not a file of data \(.*\): delete it and download it again"):
        read(HOSTILE[name], protocol)
