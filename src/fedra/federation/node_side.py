"""A site that Flower's own programs run: a folder of images, and a policy that does not refuse the plan.

An app that is sent to a Flower node runs code there, so a policy would protect nothing: what a site may refuse is
decided by the person who starts the node. `site.toml` in the node's memory folder may set labels and resources.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from fedra.federation.federation_plan import FederationPlan
from fedra.federation.folder_side import FolderSide
from fedra.federation.rehearsal import REHEARSAL
from fedra.federation.site_config import SiteConfig, SiteDataSection, read_site, site_file


class NodeSide(FolderSide):
    """The site of a Flower node."""

    def __init__(self, folder: Path, name: str, data: str) -> None:
        super().__init__(folder)
        self._name, self._path = name, data

    @cached_property
    def site(self) -> SiteConfig:
        """The content of `site.toml` in the node's memory folder, or defaults around the given data."""
        if site_file(self.folder).exists():
            return read_site(self.folder)
        return SiteConfig(name=self._name, data=SiteDataSection(path=self._path), policy=REHEARSAL)

    def check(self, plan: FederationPlan) -> list[str]:
        """Return why the site's own policy refuses a plan, if it has one."""
        return self.check_policy(plan)
