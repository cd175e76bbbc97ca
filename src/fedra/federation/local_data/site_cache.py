"""A site's data, read and decoded once; a later change is noticed, and takes effect by `fedra site refresh`.

Rounds of one federation must not see the data change under them, and decoding takes longer than a round. Data that are
read anew wait beside the others until the site describes itself to the coordinator again, between two rounds.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fedra.errors import DataError
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.local_data.site_data import SiteData, read_data
from fedra.federation.site_config import FOLDER, SiteConfig, data_path
from fedra.locking import is_held
from fedra.writing import replacing

TENSORS = ("inputs", "targets", "client", "held_out")
FORMAT = 1
NUMBERS = Path("state", "numbers.json")
"""The numbers of a site's clients, which it has from the moment when it takes part."""


def cache_file(folder: Path) -> Path:
    """Return the file of a site's decoded data."""
    return folder / "state" / "data.safetensors"


def fresh_file(folder: Path) -> Path:
    """Return the file of data that were read anew and are not used yet."""
    return folder / "state" / "fresh-data.safetensors"


def has_fresh_data(folder: Path) -> bool:
    """Return whether data were read anew since the site described itself."""
    return fresh_file(folder).exists()


def take_fresh_data(folder: Path) -> bool:
    """Use the data that were read anew from now on; returns whether there were any."""
    if not has_fresh_data(folder):
        return False
    os.replace(fresh_file(folder), cache_file(folder))
    return True


def open_data(folder: Path, site: SiteConfig, schema: DataSchema, *, newest: bool = False) -> SiteData:
    """Return the data as they were first read for this plan; read them if they never were.

    Args:
        folder: The site's folder.
        site: The content of `site.toml`.
        schema: What the plan asks of the data.
        newest: Whether to return data that were read anew and are not used yet, if there are any.

    Returns:
        The data. `is_changed` says whether the folder is different by now.
    """
    asked = _digest_request(folder, site, schema)
    path = fresh_file(folder) if newest and has_fresh_data(folder) else cache_file(folder)
    about = _read_about(path)
    if about is None:
        return refresh_data(folder, site, schema)
    if about["asked"] != asked and take_fresh_data(folder):  # the others do not fit the plan anymore
        path = cache_file(folder)
        about = _read_about(path)
    if about is None or about["asked"] != asked:
        raise DataError(
            "data and labels in site.toml, and the plan's data, must be those that the data were read with, got "
            f"others: run `fedra site refresh {folder}`"
        )
    return _read(path, about)


def refresh_data(folder: Path, site: SiteConfig, schema: DataSchema) -> SiteData:
    """Read the data anew and keep them, for the next time that the site describes itself if others are in use."""
    state = digest_files(folder, site)
    data = read_data(folder, site, schema)
    in_use = (folder / NUMBERS).exists() or is_held(folder / ".lock")
    _write(
        fresh_file(folder) if in_use else cache_file(folder),
        data,
        {"asked": _digest_request(folder, site, schema), "files": state},
    )
    return data


def keep_data(folder: Path, site: SiteConfig, schema: DataSchema, data: SiteData) -> None:
    """Keep data that were not read from files, as if they had been."""
    _write(cache_file(folder), data, {"asked": _digest_request(folder, site, schema), "files": ""})


def is_changed(folder: Path, site: SiteConfig) -> bool:
    """Return whether the files of the data changed since they were read: names, sizes or times."""
    path = fresh_file(folder) if has_fresh_data(folder) else cache_file(folder)
    about = _read_about(path)
    return about is not None and about["files"] != digest_files(folder, site)


def digest_files(folder: Path, site: SiteConfig) -> str:
    """Return a digest of the names, sizes and times of all files of the data; "" if a loader reads them."""
    if site.data.name != FOLDER:
        return ""
    base = data_path(folder, site)
    if not base.is_dir():
        raise DataError(f"the folder of the data '{base}' must exist, got no such folder: set data.path in site.toml")
    found = hashlib.sha256()
    for path in sorted(base.rglob("*")):
        if path.is_file():
            status = path.stat()
            found.update(f"{path.relative_to(base).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return found.hexdigest()


def _digest_request(folder: Path, site: SiteConfig, schema: DataSchema) -> str:
    where = str(data_path(folder, site)) if site.data.name == FOLDER else ""
    asked = {"format": FORMAT, "path": where, "data": site.data.model_dump(), "schema": schema.model_dump()}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _read_about(path: Path) -> dict[str, Any] | None:
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["about"])
            return about
    except (OSError, KeyError, ValueError, SafetensorError):
        raise DataError(f"'{path}' must be a site's decoded data, got something else: remove it") from None


def _read(path: Path, about: dict[str, Any]) -> SiteData:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in TENSORS}
    named: dict[str, Any] = {key: tuple(about[key]) for key in ("clients", "classes", "notes", "warnings")}
    return SiteData(**tensors, **named, counts=about["counts"])


def _write(path: Path, data: SiteData, about: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    named = {key: list(getattr(data, key)) for key in ("clients", "classes", "notes", "warnings")}
    text = json.dumps({**about, **named, "counts": data.counts})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, private=True) as temporary:
        save_file({name: getattr(data, name).contiguous() for name in TENSORS}, temporary, metadata={"about": text})
