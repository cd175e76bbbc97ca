"""The two public files that a coordinator and a site exchange: the invitation and the site's answer to it.

Neither holds a secret. What protects them is that two people compare fingerprints by telephone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tomli_w
from cryptography.x509 import Certificate
from pydantic import Field

from fedra import __version__
from fedra.config.schema import Section
from fedra.errors import ConfigError
from fedra.federation import keys
from fedra.federation.federation_plan import FederationPlan, parse_plan
from fedra.federation.site_config import require_name
from fedra.federation.tables import checked_table, parse_table, read_table
from fedra.file_reading import read_text_file
from fedra.writing import write_atomically

INVITATION_HEADER = "# An invitation to a federation. It holds no secret; compare its fingerprint by telephone.\n"
REQUEST_HEADER = "# A site that asks to be admitted. It holds no secret; compare its fingerprint by telephone.\n"


class _InvitationFile(Section):
    invitation: int = Field(ge=1, le=1)
    fedra: str
    authority: str
    plan: dict[str, object]


class _RequestFile(Section):
    site: int = Field(ge=1, le=1)
    fedra: str
    name: str
    certificate: str


@dataclass(frozen=True)
class Invitation:
    """What a site learns from an invitation: whom to trust, where to connect, and the plan."""

    authority: Certificate
    plan: FederationPlan

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the federation, to compare with the coordinator's."""
        return keys.fingerprint(self.authority)

    def to_toml(self) -> str:
        """Return the content of the file."""
        table = {
            "invitation": 1,
            "fedra": __version__,
            "authority": keys.to_pem(self.authority),
            "plan": self.plan.public,
        }
        return INVITATION_HEADER + tomli_w.dumps(table, multiline_strings=True)


@dataclass(frozen=True)
class SiteRequest:
    """What a coordinator learns from a site's file: its name and its certificate."""

    name: str
    certificate: Certificate

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the site, to compare with the site's own."""
        return keys.fingerprint(self.certificate)

    def to_toml(self) -> str:
        """Return the content of the file."""
        table = {
            "site": 1,
            "fedra": __version__,
            "name": self.name,
            "certificate": keys.to_pem(self.certificate),
        }
        return REQUEST_HEADER + tomli_w.dumps(table, multiline_strings=True)


def parse_invitation(text: str, where: str) -> Invitation:
    """Parse an invitation."""
    found = checked_table(_InvitationFile, parse_table(text, where), where)
    authority = keys.parse_certificate(found.authority, where)
    keys.check_authority(authority, where)
    return Invitation(authority, parse_plan(found.plan, where))


def read_invitation(path: Path) -> Invitation:
    """Read an invitation that a coordinator sent."""
    read_table(path, "the invitation", "ask the coordinator for it")
    return parse_invitation(read_text_file(path), f"the invitation '{path}'")


def write_invitation(path: Path, invitation: Invitation) -> None:
    """Write an invitation."""
    write_atomically(path, invitation.to_toml().encode())


def read_request(path: Path) -> SiteRequest:
    """Read the file of a site that asks to be admitted."""
    where = f"the site's file '{path}'"
    found = checked_table(_RequestFile, read_table(path, "the site's file", "ask the site for it"), where)
    certificate = keys.parse_certificate(found.certificate, where)
    keys.check_site(certificate, where)
    if keys.name_of(certificate) != require_name(found.name, "a site"):
        raise ConfigError(
            f"the name in {where} must be that of its certificate ('{keys.name_of(certificate)}'), got '{found.name}': "
            "ask the site for the file again"
        )
    return SiteRequest(found.name, certificate)


def write_request(path: Path, request: SiteRequest) -> None:
    """Write a site's file for the coordinator."""
    write_atomically(path, request.to_toml().encode())
