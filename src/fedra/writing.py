"""Files that appear whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedra.errors import ConfigError, DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")
"""What pictures can be written as."""
LONGEST = 128
"""Bytes of the longest file name that a temporary name repeats; most file systems end at 255."""


def write_atomically(path: Path, data: bytes, lasting: bool = True) -> None:
    """Write under a temporary name, then rename: readers see the old file or the new one, never a part.

    Without `lasting` the disk may take its time, and a power cut may leave a part.
    """
    temporary = path.with_name(f"{_short(path)}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        if lasting:
            os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write JSON, making the folder; a number that is not finite is refused."""
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except ValueError:
        raise DataError(f"a number for '{path}' is NaN or infinite: JSON can hold finite numbers only") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text + "\n").encode())


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture, .svg or .png, making its folder; the same picture gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"a picture cannot be drawn into '{path}': end its name with .svg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{_short(path)}.{os.getpid()}.tmp")
    FigureCanvasAgg(figure)
    with rc_context({"svg.hashsalt": "fedra"}):
        figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    os.replace(temporary, path)


def _short(path: Path) -> str:
    """A name that leaves room for an ending: the file's own, by which leftovers are found, or its hash."""
    name = os.fsencode(path.name)
    return path.name if len(name) <= LONGEST else hashlib.sha256(name).hexdigest()[:32]
