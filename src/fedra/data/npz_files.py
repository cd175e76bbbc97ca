"""Arrays from an .npz file that nobody vouches for: no pickles, and no size believed that the file cannot hold."""

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
"""Deflate cannot make data smaller than this."""
LZMA_RATIO = 20_000
"""More than LZMA and bzip2 reach on constant data."""


def names_in(path: Path) -> list[str]:
    """The names of the arrays in a file, without reading them."""
    return _reading(path, lambda archive: [name[:-4] for name in archive.namelist() if name.endswith(".npy")])


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays of those names; `DataError` where one is missing, holds objects, or is not what the file says."""
    return _reading(path, lambda archive: {name: _read(archive, path, name) for name in names})


def _reading(path: Path, action: Callable[[zipfile.ZipFile], T]) -> T:
    if not path.is_file():
        raise DataError(f"there is no file '{path}': check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            return action(archive)
    except FedraError:
        raise
    except KeyError as error:
        raise DataError(f"'{path}' has no array ({error.args[0]}): check its name") from None
    except Exception as error:  # zipfile, zlib, lzma and numpy answer damage with a dozen kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"'{path}' is not a readable .npz file ({reason}): write it again with numpy.savez") from None


def _read(archive: zipfile.ZipFile, path: Path, name: str) -> NDArray[Any]:
    info = archive.getinfo(f"{name}.npy")
    where = f"'{name}' in '{path}'"
    ratio = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: RATIO}.get(info.compress_type, LZMA_RATIO)
    length = os.fstat(archive.fp.fileno()).st_size if archive.fp is not None else 0
    if info.compress_size > length or info.file_size > ratio * info.compress_size + ratio:
        raise DataError(f"{where} promises {info.file_size:,} bytes, more than a file of {length:,} bytes can hold")
    with archive.open(info) as stream:
        header = _header(stream, where)
        promised = math.prod(header[0]) * header[1].itemsize
        there = info.file_size - stream.tell()
        if promised != there:
            raise DataError(f"{where} promises {promised:,} bytes of numbers and holds {there:,}")
        _check_memory(promised, where)
    with archive.open(info) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise DataError(f"{where} has the format {version}: write it as plain numbers or texts")
    if dtype.hasobject or dtype.fields is not None or dtype.kind not in "biufU":
        raise DataError(f"{where} holds {dtype}: write it as numbers or texts (no objects, no records)")
    if any(size < 0 for size in shape):
        raise DataError(f"{where} has the shape {shape}: every size must be 0 or more")
    return shape, dtype


def _check_memory(wanted: int, where: str) -> None:
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if wanted > there:
            raise DataError(f"{where} takes {wanted / 1e9:.1f} GB, and this machine has {there / 1e9:.1f} GB of memory")
