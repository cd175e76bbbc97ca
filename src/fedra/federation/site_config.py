"""A site's folder and its `site.toml`: its name, its data, its policy, its resources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fedra.config.overrides import apply_changes, parse_override
from fedra.config.schema import NamedSection, Section
from fedra.errors import ConfigError
from fedra.federation.policy import Policy
from fedra.federation.tables import checked_table, commented, read_table
from fedra.writing import write_atomically

FOLDER = "folder"
"""The name of data that are a folder of images."""
HEADER = """\
# This site, its data and ITS POLICY. Only you change this file, and the coordinator never sees it.
# `fedra site check` shows in plain words what leaves and what does not.
"""


def check_name(name: str) -> str:
    """Return a name of a site or a federation if it is fit for files, certificates and tables."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise ValueError("must have at most 40 letters a-z, digits and hyphens, with a letter or digit at both ends")
    return name


def require_name(name: str, what: str) -> str:
    """Return a valid name, or raise a `ConfigError` that says what it names."""
    try:
        return check_name(name)
    except ValueError as error:
        raise ConfigError(f"the name of {what} {error}, got '{name}'") from None


class SiteDataSection(NamedSection):
    """Where a site's data are. Other keys are fields of the data set that `name` names."""

    name: str = Field(
        FOLDER,
        description="'folder': images in one folder per class or person; or a name from `fedra list datasets`, or "
        "module:function of your own",
    )
    path: str = Field("", description="for 'folder': the folder, absolute or relative to this file")
    clients: bool = Field(
        False, description="for 'folder': one more level of folders on top, each a client with its own state"
    )
    labels: dict[str, str] = Field(
        {}, description='your folder names and the agreed names: "Pneumonie" = "pneumonia"; "unclear" = "" leaves out'
    )


class ResourcesSection(Section):
    """What a site's training may use."""

    device: str = Field("cpu", description="torch device: cpu, cuda:0, mps")
    threads: int = Field(1, ge=1, description="threads of one client's training")
    runner: str = Field("auto", description="how the clients of this site are executed; see `fedra list runners`")
    memory_gb: float = Field(16.0, gt=0, description="most memory for client state and images, in GB")
    nice: int = Field(10, ge=0, le=19, description="priority of training: 0 as other programs, 19 lowest")


class SiteConfig(Section):
    """The content of `site.toml`."""

    name: Annotated[str, AfterValidator(check_name)] = Field(description="your name in the federation")
    data: SiteDataSection = SiteDataSection()
    policy: Policy = Policy()
    resources: ResourcesSection = ResourcesSection()


def site_file(folder: Path) -> Path:
    """Return the file `site.toml` of a site's folder."""
    return folder / "site.toml"


def read_site(folder: Path) -> SiteConfig:
    """Read the `site.toml` of a site's folder."""
    path = site_file(folder)
    table = read_table(path, "the site's file", "create it with `fedra site init`")
    return checked_table(SiteConfig, table, f"'{path}'")


def make_site(name: str, path: str, settings: Sequence[str] = ()) -> SiteConfig:
    """Make a site's configuration with careful defaults.

    Args:
        name: The site's name.
        path: The folder of its images.
        settings: Keys of `site.toml` to set, such as `data.labels.gerade=even` or `policy.epochs=2`.

    Returns:
        The configuration.
    """
    table: dict[str, Any] = {"name": name, "data": {"path": path}}
    apply_changes(table, [parse_override(word) for word in settings])
    return checked_table(SiteConfig, table, "the settings")


def write_site(folder: Path, site: SiteConfig) -> None:
    """Write `site.toml` with a comment for every key."""
    text = commented(_with_settings(site))
    write_atomically(site_file(folder), (HEADER + text).encode())


def data_path(folder: Path, site: SiteConfig) -> Path:
    """Return the folder of a site's images."""
    if not site.data.path:
        raise ConfigError(f"data.path must be set in '{site_file(folder)}' for data.name = '{FOLDER}'")
    return (folder / Path(site.data.path).expanduser()).absolute()


def _with_settings(site: SiteConfig) -> SiteConfig:
    """Return the site with the fields of its data set as keys of their own, so that they are written too."""
    settings: dict[str, Any] = site.data.settings
    if not settings:
        return site
    extended: Any = type(
        "SiteDataWithSettings",
        (SiteDataSection,),
        {"__annotations__": dict.fromkeys(settings, object), **{key: Field(value) for key, value in settings.items()}},
    )
    return site.model_copy(update={"data": extended.model_validate(site.data.model_dump())})
