"""Join a federation with a site's folder: connect, answer, and leave when it is over."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import torch

from fedra.errors import ConfigError
from fedra.federation import keys
from fedra.federation.folder_side import FolderSide
from fedra.federation.local_data.site_cache import is_changed
from fedra.federation.site_folder import open_site_invitation, read_end
from fedra.federation.site_node import SiteNode
from fedra.locking import hold_lock

LEAVE_AFTER = 15.0
"""Seconds without a coordinator after which a site that has the final model leaves."""


def join_federation(folder: Path, tell: Callable[[str], None] = lambda line: None, address: str | None = None) -> None:
    """Take part in a federation until it is over.

    Args:
        folder: The site's folder.
        tell: Called with every line for the site's terminal.
        address: Where the coordinator is, if not where the invitation says.
    """
    from fedra.federation.flower.session import SiteSession  # flwr takes a second to import

    side, invitation = FolderSide(folder), open_site_invitation(folder)
    plan = invitation.plan
    if reasons := side.check(plan):
        raise ConfigError(f"this site cannot join: {'; '.join(reasons)}")
    if warning := keys.expiry_warning(
        keys.read_certificate(keys.site_files(folder).certificate), "this site", "run `fedra site renew`"
    ):
        tell(f"warning: {warning}")
    if is_changed(folder, side.site):
        tell(f"the data changed since they were read, and are used as they were: `fedra site refresh {folder}`")
    resources = side.site.resources
    torch.set_num_threads(resources.threads)
    if hasattr(os, "nice"):
        os.nice(resources.nice)
    context = keys.site_context(folder, keys.to_pem(invitation.authority))
    where = address or plan.federation.address
    ended = read_end(folder, plan)
    if ended is not None:
        tell(f"this site has the final model, after round {ended}; it stays while the coordinator is there")
    with hold_lock(folder / ".lock", f"'{folder}' is in use: another process has joined with it"):
        node = SiteNode(folder, side, resources.runner, resources.threads, tell)
        session = SiteSession(
            folder,
            where,
            context,
            node.answer,
            tell,
            side.site.name,
            is_over=lambda: node.over,
            alone=math.inf if ended is None else LEAVE_AFTER,
        )
        try:
            session.run()
        except KeyboardInterrupt:
            tell("stopped; the same command goes on")
            return
    if ended is not None and not node.over:
        tell("the federation is over: the coordinator is not there anymore")
    if node.refusal is not None:
        raise ConfigError(f"this site does not take part: {node.refusal}")
