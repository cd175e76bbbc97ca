"""Read arrays from untrusted .npz files: without pickles, and with sizes checked before memory is allocated."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedra.errors import DataError, FedraError

T = TypeVar("T")

RATIO = 1032
"""Maximum compression ratio of Deflate."""
LZMA_RATIO = 20_000
"""Upper bound on the compression ratio of LZMA and bzip2."""


def names_in(path: Path) -> list[str]:
    """Return the names of the arrays in a file, without reading them."""
    return _open(path, lambda archive: [name[:-4] for name in archive.namelist() if name.endswith(".npy")])


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read named arrays; raise `DataError` if one is missing, contains objects, or contradicts its header."""
    return _open(path, lambda archive: {name: _read(archive, path, name) for name in names})


def _open(path: Path, action: Callable[[zipfile.ZipFile], T]) -> T:
    if not path.is_file():
        raise DataError(f"the file '{path}' does not exist: check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            return action(archive)
    except FedraError:
        raise
    except KeyError as error:
        raise DataError(f"'{path}' does not contain the array ({error.args[0]}): check its name") from None
    except Exception as error:  # zipfile, zlib, lzma and numpy raise many kinds of errors for damaged files
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"'{path}' is not a readable .npz file ({reason}): write it again with numpy.savez") from None


def _read(archive: zipfile.ZipFile, path: Path, name: str) -> NDArray[Any]:
    info = archive.getinfo(f"{name}.npy")
    where = f"'{name}' in '{path}'"
    ratio = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: RATIO}.get(info.compress_type, LZMA_RATIO)
    length = os.fstat(archive.fp.fileno()).st_size if archive.fp is not None else 0
    if info.compress_size > length or info.file_size > ratio * info.compress_size + ratio:
        raise DataError(
            f"{where} must fit into its file of {length:,} bytes, but its header says {info.file_size:,} bytes: the "
            "file is damaged"
        )
    with archive.open(info) as stream:
        header = _header(stream, where)
        expected = math.prod(header[0]) * header[1].itemsize
        found = info.file_size - stream.tell()
        if expected != found:
            raise DataError(f"{where} must contain {expected:,} bytes of data, got {found:,}: the file is damaged")
        _check_memory(expected, where)
    with archive.open(info) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise DataError(f"{where} must have the .npy format 1.0 or 2.0, got {version}: save plain numbers or strings")
    if dtype.hasobject or dtype.fields is not None or dtype.kind not in "biufU":
        raise DataError(f"{where} must contain numbers or strings (no objects, no records), got {dtype}")
    if any(size < 0 for size in shape):
        raise DataError(f"{where} must have a shape without negative sizes, got {shape}")
    return shape, dtype


def _check_memory(needed: int, where: str) -> None:
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > memory:
            raise DataError(f"{where} must fit into memory ({memory / 1e9:.1f} GB), but it takes {needed / 1e9:.1f} GB")
