"""The registry of data sets, the data root, and loading by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedra.data.arrays import to_dataset
from fedra.data.dataset import Dataset
from fedra.errors import DataError
from fedra.registry import Registry
from fedra.trust import allow_imports

DATASETS = Registry(
    "data set",
    {
        "fedra.data.sets.cifar": "cifar10 cifar100",
        "fedra.data.sets.cinic": "cinic10",
        "fedra.data.sets.digits": "digits",
        "fedra.data.sets.folder": "imagefolder",
        "fedra.data.sets.medmnist": "bloodmnist breastmnist dermamnist octmnist organamnist organcmnist organsmnist "
        "pathmnist pneumoniamnist retinamnist tissuemnist",
        "fedra.data.sets.mnist": "fashion-mnist mnist",
        "fedra.data.sets.npz": "npz",
        "fedra.data.sets.svhn": "svhn",
        "fedra.data.sets.synthetic": "synthetic",
        "fedra.faces.datasets.face_folders": "faces lfw",
        "fedra.faces.datasets.packed_faces": "celeba-identities record-faces",
        "fedra.faces.datasets.synthetic_faces": "synthetic-faces",
    },
    imports=True,
)
"""Data sets by name, a mapping from names to loading functions.

Example:
    >>> "cifar10" in DATASETS
    True
"""


def data_root() -> Path:
    """Return the folder of data files: the environment variable FEDRA_DATA, or the user's cache folder.

    Returns:
        The folder, which may not exist yet.

    Example:
        >>> import os
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
    """Register your own data set under a name for configurations and `load`.

    Args:
        name: The name for `data.name`; it must not be taken.
        function: A function of the data root (a `Path`) or of no positional argument, with keyword-only fields. It
            returns a `Dataset`, a dict with arguments of `from_arrays`, or a tuple of arrays.

    Returns:
        None.

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


ALTERED = "altered"
"""The note of a data set whose files have official names and other contents."""


def load(name: str, *, root: Path | str | None = None, trust: bool | None = None, **settings: Any) -> Dataset:
    """Load a data set by name, and download it if necessary.

    Args:
        name: A name from `fedra list datasets`, a registered name, or `module:function`.
        root: The folder of data files. Defaults to `data_root()`.
        trust: Whether `module:function` may be imported. Defaults to False outside of a run.
        settings: Fields of the data set. Paths may be strings or `Path` objects.

    Returns:
        The data set, with training and test examples as tensors.

    Example:
        >>> digits = load("digits", test_fraction=0.1)
        >>> digits.shape, len(digits.classes)
        ((1, 8, 8), 10)
    """
    if trust is not None:
        with allow_imports(trust):
            return load(name, root=root, **settings)
    from fedra.data.download import noting_altered  # http takes longer to import than all of this package

    checked = DATASETS.settings(name, settings)
    folder = data_root() if root is None else Path(root).expanduser()
    try:
        with noting_altered() as altered:
            found = DATASETS.call(name, {"root": folder}, checked)
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror or error}"
        raise DataError(f"the data set '{name}' cannot be read ({reason}): check the file permissions") from error
    dataset = to_dataset(found, name)
    if not altered:
        return dataset
    note = f"the data set '{name}' is not the official one: the checksum of '{altered[0]}' differs"
    return replace(dataset, notes={**dataset.notes, ALTERED: note})
