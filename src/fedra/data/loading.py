"""The table of datasets by name, where their files live, and how one is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedra.data.arrays import to_dataset
from fedra.data.dataset import Dataset
from fedra.errors import DataError
from fedra.registry import Registry
from fedra.trust import importing

DATASETS = Registry("dataset", homes=("fedra.faces.datasets",), imports=True)


def data_root() -> Path:
    """The folder of data files: the environment variable FEDRA_DATA, else the user's cache folder.

    Returns:
        The folder, which may not be there yet.

    Example:
        >>> os.environ["FEDRA_DATA"] = "/data"
        >>> data_root()
        PosixPath('/data')
    """
    chosen = os.environ.get("FEDRA_DATA")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fedra")) / "data"


def register(name: str, function: Callable[..., Any]) -> None:
    """Make a data set of your own known by name, to configurations and to `load`.

    Args:
        name: What `data.name` says; a name that is taken is refused.
        function: Takes the data root (a `Path`) or no positional argument, and keyword-only fields; returns a
            `Dataset`, or arrays as `to_dataset` takes them.

    Example:
        >>> import numpy as np
        >>> def blobs(*, spread: float = 1.0):
        ...     labels = np.arange(100) % 2
        ...     return spread * np.random.RandomState(0).randn(100, 5) + labels[:, None], labels
        >>> register("blobs", blobs)
        >>> load("blobs", spread=0.5).shape
        (5,)
    """
    DATASETS.add(name)(function)


def load(name: str, *, root: Path | str | None = None, trust: bool | None = None, **settings: Any) -> Dataset:
    """The data set `name`, downloaded where it is missing and that is allowed.

    Args:
        name: A name of `fedra list datasets`, a registered one, or `module:function`.
        root: The folder of data files; `data_root()` unless given.
        trust: Whether `module:function` may be imported; by default only where a run was asked for.
        settings: The data set's own fields; paths may be texts or `Path` objects.

    Returns:
        Training and test examples as tensors made once.

    Example:
        >>> digits = load("digits", test_fraction=0.1)
        >>> digits.shape, len(digits.classes)
        ((1, 8, 8), 10)
    """
    if trust is not None:
        with importing(trust):
            return load(name, root=root, **settings)
    checked = DATASETS.settings(name, settings)
    folder = data_root() if root is None else Path(root).expanduser()
    try:
        found = DATASETS.call(name, {"root": folder}, checked)
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror or error}"
        raise DataError(f"the dataset '{name}' cannot be read ({reason}): check the file's rights") from error
    return to_dataset(found, name)
