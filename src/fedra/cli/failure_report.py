"""What is left of an error that fedra did not foresee: one sentence, and a report that a bug can be found with."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from fedra import __version__

LARGEST_CONFIG = 2**16
"""Bytes of a configuration file that are copied into a report."""

PACKAGES = ("torch", "numpy", "pydantic", "safetensors", "pillow", "onnxruntime", "ray", "flwr")
"""Packages whose versions a report lists."""


def describe_failure(error: BaseException, words: Sequence[str]) -> str:
    """Return one sentence about an unforeseen error, after saving a report; `words` are those of the command line."""
    if is_memory(error):
        return (
            f"there is not enough memory ({_first_line(error)}): use a smaller model, batch or data set, or fewer "
            "workers"
        )
    try:
        place = f"a report is in '{_write_report(error, words)}'"
    except OSError as problem:
        place = f"no report could be saved ({problem.strerror or problem}), but --debug shows the traceback"
    return (
        f"an error that was not foreseen: {type(error).__name__} ({_first_line(error)}); {place}: look through it for "
        "private names, and send it to the authors"
    )


def is_memory(error: BaseException) -> bool:
    """Return whether an allocation failed; torch raises a plain RuntimeError for main memory, a fork an OSError."""
    text = str(error).lower()
    allocation = "allocate" in text and "memory" in text
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError | OSError) and allocation)


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).strip().partition("\n")[0].split())
    return text[:200] or "without a message"


def _write_report(error: BaseException, words: Sequence[str]) -> Path:
    """Write the report where only its owner can read it, because it has paths and settings."""
    sections = {
        "command": shlex.join(["fedra", *words]),
        "versions": _versions(),
        "configuration": _configuration(words),
        "traceback": "".join(traceback.format_exception(error)),
    }
    text = "\n".join(f"== {name}\n{content.rstrip()}\n" for name, content in sections.items())
    descriptor, name = tempfile.mkstemp(prefix="fedra-report-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(name)


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    lines = [f"fedra {__version__}", f"python {sys.version.split()[0]}", platform.platform()]
    for name in PACKAGES:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return "\n".join(lines)


def _configuration(words: Sequence[str]) -> str:
    """Return the content of the configuration that the command names, if it names a file or a run."""
    for word in words:
        path = Path(word)
        path = path / "config.toml" if path.is_dir() else path
        if path.suffix == ".toml" and path.is_file():
            return path.read_bytes()[:LARGEST_CONFIG].decode("utf-8", errors="replace")
    return "none"
