"""Cache of decoded data sets: one safetensors file per entry, in the folder `.cache` of the data root.

Images outside of the data root are yours, perhaps private, so they are cached only if a configuration asks for it
(`data.cache = true`). An entry is valid while the names, sizes and modification times of its source files and the
loader's fields stay the same. Tensors are memory-mapped. A damaged entry is decoded again, and a read-only folder only
disables the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedra.writing import replacing

FORMAT = 1
"""Version of the decoding; increase it when a loader changes, to invalidate old entries."""


CACHE = ".cache"
"""The folder of entries in the data root."""

_mode: ContextVar[bool | None] = ContextVar("cache", default=None)


@contextlib.contextmanager
def caching(mode: bool | None) -> Iterator[None]:
    """Cache everything (True), nothing (False), or data under the data root only (None) inside the block."""
    before = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(before)


@dataclass(frozen=True)
class CacheEntry:
    """One decoded data set on the disk."""

    path: Path
    bytes: int

    @property
    def name(self) -> str:
        """The name of the data set or folder, and a digest of its fields."""
        return self.path.stem


def cache_entries(root: Path) -> list[CacheEntry]:
    """Return all entries of a data root, and what killed processes left of them, by name."""
    found = (path for path in sorted((root / CACHE).glob("*")) if path.suffix in (".safetensors", ".tmp"))
    return [CacheEntry(path, path.lstat().st_size) for path in found if path.is_file() and not path.is_symlink()]


def clear_cache(root: Path, name: str | None = None) -> list[CacheEntry]:
    """Remove the entries whose names start with `name`, by default all, and return them."""
    removed = [entry for entry in cache_entries(root) if name is None or entry.path.name.startswith(name)]
    for entry in removed:
        entry.path.unlink(missing_ok=True)
    return removed


def cached(
    root: Path,
    name: str,
    sources: Iterable[Path],
    decode: Callable[[], dict[str, Tensor]],
    fields: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Return `decode()`, or its cached result for the same `sources` and `fields`."""
    sources = list(sources)
    if not _is_wanted(root, sources):
        return decode()
    entry = root / CACHE / f"{name}-{_digest(dict(fields or {}))[:12]}.safetensors"
    stamp = _digest([FORMAT, [_state(source) for source in sources]])
    stored = _read(entry, stamp)
    if stored is not None:
        return stored
    decoded = decode()
    # Without a writable disk the data set is still usable.
    with contextlib.suppress(OSError):
        _write(entry, stamp, decoded)
    return decoded


def _is_wanted(root: Path, sources: Iterable[Path]) -> bool:
    mode = _mode.get()
    if mode is None:
        home = os.path.abspath(root)
        return all(os.path.commonpath([home, os.path.abspath(source)]) == home for source in sources)
    return mode


def _digest(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _state(source: Path) -> list[Any]:
    status = source.stat()
    return [os.path.abspath(source), status.st_size, status.st_mtime_ns]


def _read(entry: Path, stamp: str) -> dict[str, Tensor] | None:
    """Read the tensors with this stamp; None if there are none, or if another process has just replaced them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(entry, framework="pt") as file:
            if (file.metadata() or {}).get("stamp") != stamp:
                return None
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        # Header and tensors are opened by path one after the other, so they may belong to different files.
        with safe_open(entry, framework="pt") as file:
            return found if (file.metadata() or {}).get("stamp") == stamp else None
    except (OSError, RuntimeError, SafetensorError):  # torch raises RuntimeError if the file was truncated
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
