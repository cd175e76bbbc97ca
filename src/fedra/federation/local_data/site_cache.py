"""A site's data, read and decoded once; a later change is noticed, and takes effect by `fedra site refresh`.

Rounds of one federation must not see the data change under them, and decoding takes longer than a round.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedra.errors import DataError
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.local_data.site_data import SiteData, read_data
from fedra.federation.site_config import FOLDER, SiteConfig, data_path
from fedra.writing import replacing

TENSORS = ("inputs", "targets", "client", "held_out")
FORMAT = 1


def cache_file(folder: Path) -> Path:
    """Return the file of a site's decoded data."""
    return folder / "state" / "data.safetensors"


def open_data(folder: Path, site: SiteConfig, schema: DataSchema) -> SiteData:
    """Return the data as they were first read for this plan; read them if they never were.

    Args:
        folder: The site's folder.
        site: The content of `site.toml`.
        schema: What the plan asks of the data.

    Returns:
        The data. `is_changed` says whether the folder is different by now.
    """
    about = _read_about(folder)
    if about is None:
        return refresh_data(folder, site, schema)
    if about["asked"] != _digest_request(folder, site, schema):
        raise DataError(
            "data and labels in site.toml, and the plan's data, must be those that the data were read with, got "
            f"others: run `fedra site refresh {folder}`"
        )
    return _read(folder, about)


def refresh_data(folder: Path, site: SiteConfig, schema: DataSchema) -> SiteData:
    """Read the data anew and keep them."""
    state = digest_files(folder, site)
    data = read_data(folder, site, schema)
    _write(folder, data, {"asked": _digest_request(folder, site, schema), "files": state})
    return data


def keep_data(folder: Path, site: SiteConfig, schema: DataSchema, data: SiteData) -> None:
    """Keep data that were not read from files, as if they had been."""
    _write(folder, data, {"asked": _digest_request(folder, site, schema), "files": ""})


def is_changed(folder: Path, site: SiteConfig) -> bool:
    """Return whether the files of the data changed since they were read: names, sizes or times."""
    about = _read_about(folder)
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


def _read_about(folder: Path) -> dict[str, Any] | None:
    from safetensors import SafetensorError, safe_open

    path = cache_file(folder)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["about"])
            return about
    except (OSError, KeyError, ValueError, SafetensorError):
        raise DataError(f"'{path}' must be a site's decoded data, got something else: remove it") from None


def _read(folder: Path, about: dict[str, Any]) -> SiteData:
    from safetensors import safe_open

    with safe_open(cache_file(folder), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in TENSORS}
    named: dict[str, Any] = {key: tuple(about[key]) for key in ("clients", "classes", "notes", "warnings")}
    return SiteData(**tensors, **named, counts=about["counts"])


def _write(folder: Path, data: SiteData, about: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    named = {key: list(getattr(data, key)) for key in ("clients", "classes", "notes", "warnings")}
    text = json.dumps({**about, **named, "counts": data.counts})
    cache_file(folder).parent.mkdir(parents=True, exist_ok=True)
    with replacing(cache_file(folder), private=True) as temporary:
        save_file({name: getattr(data, name).contiguous() for name in TENSORS}, temporary, metadata={"about": text})
