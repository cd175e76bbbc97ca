"""The systemd unit of a site, so that it joins again after a restart of its machine."""

from __future__ import annotations

import getpass
import shlex
import sys
from pathlib import Path

from fedra.federation.site_config import read_site
from fedra.federation.site_folder import open_site_invitation

UNIT = """\
# Save as /etc/systemd/system/{unit}.service, then: systemctl enable --now {unit}
[Unit]
Description=fedra site {name} of the federation {federation}
After=network-online.target
Wants=network-online.target

[Service]
User={user}
WorkingDirectory={folder}
ExecStart={command}
Restart=on-failure
RestartSec=10
# Exit codes 2 and 3 are refusals that a person must look at: a policy, a version, an expired certificate; a site that
# was removed, or another process with its key.
RestartPreventExitStatus=2 3
Nice={nice}
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=strict
ReadWritePaths={folder}

[Install]
WantedBy=multi-user.target
"""


def format_unit(folder: Path) -> str:
    """Return a systemd unit that runs `fedra site join` on a site's folder."""
    site, plan = read_site(folder), open_site_invitation(folder).plan
    place = folder.absolute()
    return UNIT.format(
        unit=f"fedra-{site.name}",
        name=site.name,
        federation=plan.federation.name,
        user=getpass.getuser(),
        folder=place,
        command=shlex.join([sys.executable, "-m", "fedra.cli", "site", "join", str(place)]),
        nice=site.resources.nice,
    )
