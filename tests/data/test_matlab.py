"""MATLAB files: what SciPy writes is read, and no damage does more than raise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from fedra.data.matlab import DamagedMatlab, read_matlab

ARRAYS = {
    "X": np.random.default_rng(0).integers(0, 256, (4, 5, 3, 6), dtype=np.uint8),
    "y": np.arange(6, dtype=np.float64)[:, None],
    "k": np.array([[7]], dtype=np.uint8),
    "long_name_of_mine": np.array([[1.5, -2.0]], dtype=np.float32),
}


@pytest.mark.parametrize("packed", [False, True])
def test_numbers_come_out_as_scipy_reads_them(tmp_path: Path, packed: bool) -> None:
    savemat(tmp_path / "a.mat", {**ARRAYS, "text": "words", "cell": {"a": 1}}, do_compression=packed)
    found, wanted = read_matlab(tmp_path / "a.mat"), loadmat(tmp_path / "a.mat")
    assert found.keys() == ARRAYS.keys()
    for name, values in found.items():
        assert np.array_equal(values, wanted[name])
        assert values.dtype == wanted[name].dtype


@pytest.mark.parametrize("packed", [False, True])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 900),
)
def test_damage_is_read_or_refused(tmp_path: Path, packed: bool, places: list[tuple[int, int]], cut: int) -> None:
    savemat(tmp_path / "a.mat", ARRAYS, do_compression=packed)
    content = bytearray((tmp_path / "a.mat").read_bytes())
    for place, value in places:
        content[place % len(content)] = value
    (tmp_path / "a.mat").write_bytes(content[: max(cut, 1)] if cut < 450 else content)
    try:
        found = read_matlab(tmp_path / "a.mat")
    except DamagedMatlab:
        return
    assert sum(values.nbytes for values in found.values()) < 10**6


def test_sizes_are_not_believed(tmp_path: Path) -> None:
    header = b" " * 124 + b"\x00\x01IM"
    (tmp_path / "a.mat").write_bytes(header + b"\x0e\0\0\0\xff\xff\xff\x7f" + b"\0" * 120)
    with pytest.raises(DamagedMatlab, match="longer than the file"):
        read_matlab(tmp_path / "a.mat")
    (tmp_path / "a.mat").write_bytes(b"MATLAB 7.3")
    with pytest.raises(DamagedMatlab, match="no header"):
        read_matlab(tmp_path / "a.mat")
