"""Keeping the secret of a private run: a file that only its owner can read, gone when the run is finished."""

from __future__ import annotations

import os
from pathlib import Path

from fedra.core.secret_numbers import Secret
from fedra.errors import RunError
from fedra.file_reading import SMALL, read_file
from fedra.writing import write_atomically

__all__ = ["Secret", "read_secret", "write_secret"]


def write_secret(path: Path, secret: Secret) -> None:
    """Write a secret to a file that only its owner can read.

    Args:
        path: The file; its folder is created.
        secret: The secret.

    Example:
        ```python
        write_secret(folder / "checkpoint/secret", Secret.create())
        ```
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, secret.data, private=True)
    os.chmod(path, 0o600)


def read_secret(path: Path) -> Secret:
    """Read a secret.

    Args:
        path: The file that `write_secret` wrote.

    Returns:
        The secret.

    Raises:
        RunError: If the file is gone: repeated rounds would be released with other noise.

    Example:
        ```python
        secret = read_secret(folder / "checkpoint/secret")
        ```
    """
    try:
        return Secret(read_file(path, SMALL))
    except FileNotFoundError:
        raise RunError(
            f"a private run must have its secret at '{path}', but the file is gone; repeated rounds would be released "
            "with other noise: start another run"
        ) from None
