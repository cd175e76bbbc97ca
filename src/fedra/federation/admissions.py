"""Who is admitted: one file per site in the folder `sites`, never deleted, so no name is reused."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path

import tomli_w
from pydantic import Field

from fedra.config.schema import Section
from fedra.errors import ConfigError, nearest
from fedra.federation import keys
from fedra.federation.invitation import SiteRequest
from fedra.federation.tables import checked_table, read_table
from fedra.writing import write_atomically


class Admission(Section):
    """The record of an admitted site."""

    name: str
    fingerprint: str
    admitted: str = Field(description="when, in UTC")
    by: str = Field(description="who admitted it")
    removed: str = Field("", description="when it was removed, in UTC; empty while it is admitted")
    reason: str = Field("", description="why it was removed")
    certificate: str

    @property
    def active(self) -> bool:
        """Whether the site may connect."""
        return not self.removed


def read_admissions(folder: Path) -> dict[str, Admission]:
    """Return all records by name, those of removed sites included."""
    found = {}
    for path in sorted((folder / "sites").glob("*.toml")):
        found[path.stem] = checked_table(Admission, read_table(path, "the record", "admit it again"), f"'{path}'")
    return found


def admitted_sites(folder: Path) -> dict[str, Admission]:
    """Return the sites that may connect."""
    return {name: one for name, one in read_admissions(folder).items() if one.active}


def admit_site(folder: Path, request: SiteRequest) -> Admission:
    """Admit a site; also accepts a renewed certificate of the same key, and a site that was removed.

    Args:
        folder: The coordinator's folder.
        request: The site's file.

    Returns:
        The record.
    """
    known = read_admissions(folder)
    before = known.get(request.name)
    if before is not None and not keys.same_fingerprint(before.fingerprint, request.fingerprint):
        raise ConfigError(
            f"the name '{request.name}' belongs to a site with another key ({before.fingerprint}), got "
            f"{request.fingerprint}: the new site needs another name (`fedra site init --name`)"
        )
    for name, other in known.items():
        if name != request.name and keys.same_fingerprint(other.fingerprint, request.fingerprint):
            raise ConfigError(
                f"every site must have its own key, got the key of '{name}' for '{request.name}': ask the site to run "
                "`fedra site init` in a new folder"
            )
    record = Admission(
        name=request.name,
        fingerprint=request.fingerprint,
        admitted=_now(),
        by=_user(),
        certificate=keys.to_pem(request.certificate),
    )
    _write(folder, record)
    return record


def remove_site(folder: Path, name: str, reason: str = "") -> Admission:
    """Remove a site: a coordinator that runs refuses it from its next request on."""
    known = admitted_sites(folder)
    if name not in known:
        hint = nearest(name, known) if known else "none is admitted"
        raise ConfigError(f"the site to remove must be admitted, got '{name}': {hint}")
    record = known[name].model_copy(update={"removed": _now(), "reason": reason})
    _write(folder, record)
    return record


def _write(folder: Path, record: Admission) -> None:
    (folder / "sites").mkdir(exist_ok=True)
    text = tomli_w.dumps(record.model_dump(), multiline_strings=True)
    write_atomically(folder / "sites" / f"{record.name}.toml", text.encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without an entry in the system's list
        return "unknown"
