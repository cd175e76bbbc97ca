"""The table of datasets by name, where their files live, and how one is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedra.data.dataset import Dataset
from fedra.errors import ConfigError, DataError, nearest
from fedra.registry import Field, Registry, fields

DATASETS = Registry("dataset")


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
    known = fields(loader)
    for setting in settings:
        if setting not in known:
            help_ = nearest(setting, known) if known else "it has no fields"
            raise ConfigError(f"the dataset '{name}' has no field '{setting}': {help_}")
    for field in known.values():
        if field.required and field.name not in settings:
            raise ConfigError(f"the dataset '{name}' needs the field '{field.name}': give it a value")
    checked = {key: _checked(name, known[key], value) for key, value in settings.items()}
    folder = data_root() if root is None else Path(root).expanduser()
    try:
        dataset: Dataset = loader(folder, **checked)
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror or error}"
        raise DataError(f"the dataset '{name}' cannot be read ({reason}): check the file's rights") from error
    return dataset


def _checked(dataset: str, field: Field, value: Any) -> Any:
    try:
        return TypeAdapter(field.annotation).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(
            f"the dataset '{dataset}' cannot use {field.name} = {value!r}: {reason[:1].lower()}{reason[1:]}"
        ) from None
