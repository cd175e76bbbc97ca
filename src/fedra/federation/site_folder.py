"""Create a site's folder from an invitation, and record which plans a person approved there."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedra.errors import ConfigError
from fedra.federation import keys
from fedra.federation.coordinator_folder import new_folder
from fedra.federation.federation_plan import FederationPlan
from fedra.federation.invitation import Invitation, SiteRequest, read_invitation, write_invitation, write_request
from fedra.federation.site_config import SiteConfig, read_site, write_site
from fedra.file_reading import read_text_file
from fedra.writing import write_json

INVITATION = "federation.invite"
"""The site's copy of its invitation."""
END = "state/end.json"
"""The plan whose final model this site has."""


def create_site_folder(folder: Path, invitation: Invitation, site: SiteConfig) -> SiteRequest:
    """Create a site's folder: its key, its certificate, its file for the coordinator, and `site.toml`.

    Args:
        folder: The folder, which must not exist or be empty.
        invitation: The coordinator's invitation, whose fingerprint a person compared.
        site: The site's name, data, policy and resources.

    Returns:
        What to send to the coordinator; it is in the folder too.
    """
    with new_folder(folder, "a site") as temporary:
        files = keys.create_site(temporary, site.name)
        request = SiteRequest(site.name, keys.read_certificate(files.certificate))
        write_invitation(temporary / INVITATION, invitation)
        write_request(temporary / f"{site.name}.site", request)
        write_site(temporary, site)
    return request


def renew_site_certificate(folder: Path) -> Path:
    """Issue a new certificate for the site's key and write its file for the coordinator, who admits it again."""
    site = read_site(folder)
    files = keys.renew_site(folder, site.name)
    path = folder / f"{site.name}.site"
    write_request(path, SiteRequest(site.name, keys.read_certificate(files.certificate)))
    return path


def open_site_invitation(folder: Path) -> Invitation:
    """Return the invitation that a site accepted."""
    return read_invitation(folder / INVITATION)


def replace_invitation(folder: Path, invitation: Invitation) -> None:
    """Take a newer invitation of the same federation: another plan or another address."""
    before = open_site_invitation(folder)
    if not keys.same_fingerprint(before.fingerprint, invitation.fingerprint):
        raise ConfigError(
            f"an invitation must come from the same federation ({before.fingerprint}), got {invitation.fingerprint}: "
            "join another federation from another folder"
        )
    write_invitation(folder / INVITATION, invitation)


def approve_plan(folder: Path, plan: FederationPlan) -> None:
    """Record that a person approved a plan."""
    approved = read_approvals(folder)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    approved[plan.digest] = {"time": now, "by": getpass.getuser(), "federation": plan.federation.name}
    write_json(_approvals(folder), approved)


def is_approved(folder: Path, plan: FederationPlan) -> bool:
    """Return whether a person approved this very plan, or the policy needs none."""
    return read_site(folder).policy.approve == "within-policy" or plan.digest in read_approvals(folder)


def read_approvals(folder: Path) -> dict[str, Any]:
    """Return the approved digests, with when and by whom."""
    path = _approvals(folder)
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text_file(path))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"'{path}' must list approved plans, got something else: remove it and approve again")
    return found


def record_end(folder: Path, plan: FederationPlan, round: int) -> None:
    """Record that this site has the final model of a plan, after so many rounds."""
    write_json(folder / END, {"plan": plan.digest, "round": round})


def read_end(folder: Path, plan: FederationPlan) -> int | None:
    """Return after how many rounds a plan ended for this site; None if this site does not have its final model."""
    path = folder / END
    try:
        found = json.loads(read_text_file(path)) if path.exists() else {}
        return int(found["round"]) if found.get("plan") == plan.digest else None
    except (ValueError, TypeError, AttributeError, KeyError):
        raise ConfigError(f"'{path}' must name a plan and a round, got something else: remove it") from None


def _approvals(folder: Path) -> Path:
    return folder / "state" / "approved.json"
