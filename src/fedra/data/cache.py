"""Decoded arrays kept beside the data, so that a set is decoded once: one safetensors file for each entry.

An entry is valid while the names, sizes and modification times of its source files and the loader's fields
are what they were. Tensors come back memory-mapped; a damaged entry is decoded again; a folder that cannot
be written costs the time of decoding and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedra.writing import replacing

FORMAT = 1
"""Raised whenever a loader's decoding changes, so that old entries are not believed."""


def cached(
    root: Path,
    name: str,
    sources: Iterable[Path],
    decode: Callable[[], dict[str, Tensor]],
    fields: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """`decode()`, or what it returned last time for the same `sources` and `fields`."""
    entry = root / ".cache" / f"{name}-{_digest(dict(fields or {}))[:12]}.safetensors"
    stamp = _digest([FORMAT, [_state(source) for source in sources]])
    kept = _read(entry, stamp)
    if kept is not None:
        return kept
    decoded = decode()
    # A read-only or full disk must not cost the user a set that was decoded correctly.
    with contextlib.suppress(OSError):
        _write(entry, stamp, decoded)
    return decoded


def _digest(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _state(source: Path) -> list[Any]:
    status = source.stat()
    return [os.path.abspath(source), status.st_size, status.st_mtime_ns]


def _read(entry: Path, stamp: str) -> dict[str, Tensor] | None:
    """The tensors kept under this stamp; None if there are none, or if another process replaced them meanwhile."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(entry, framework="pt") as file:
            if (file.metadata() or {}).get("stamp") != stamp:
                return None
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        # The header and the tensors are opened one after the other by path, so both may be of different files.
        with safe_open(entry, framework="pt") as file:
            return found if (file.metadata() or {}).get("stamp") == stamp else None
    except (OSError, RuntimeError, SafetensorError):  # torch raises a RuntimeError where the file became shorter
        return None


def _write(entry: Path, stamp: str, decoded: dict[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    entry.parent.mkdir(parents=True, exist_ok=True)
    packed = {name: values.contiguous() for name, values in decoded.items()}
    try:
        with replacing(entry, private=True) as temporary:
            save_file(packed, temporary, metadata={"stamp": stamp})
    except SafetensorError as error:
        raise OSError(str(error)) from error
