"""The table of datasets by name, where their files live, and how one is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedra.data.dataset import Dataset
from fedra.errors import DataError
from fedra.registry import Registry

DATASETS = Registry("dataset", homes=("fedra.faces.datasets",))


def data_root() -> Path:
    """The folder of data files: the environment variable FEDRA_DATA, else the user's cache folder."""
    chosen = os.environ.get("FEDRA_DATA")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fedra")) / "data"


def load(name: str, *, root: Path | str | None = None, **settings: Any) -> Dataset:
    """The dataset `name`, read from `root` (downloaded there when missing); `settings` are its own fields."""
    loader = DATASETS[name]
    checked = DATASETS.settings(name, settings)
    folder = data_root() if root is None else Path(root).expanduser()
    try:
        dataset: Dataset = loader(folder, **checked)
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror or error}"
        raise DataError(f"the dataset '{name}' cannot be read ({reason}): check the file's rights") from error
    return dataset
