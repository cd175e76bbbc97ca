"""Commands of a federation's coordinator: `fedra federate init`, `admit`, `remove`, `renew` and `flower-app`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import TRAIN, CommandGroup, Overrides, app, examples, print_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

federate_app = CommandGroup(
    help="Coordinate a federation: sites train together over a network, and their images stay with them.",
    epilog=examples(
        "fedra federate try config.toml --sites 3 --out runs/try",
        "fedra federate init chest config.toml --address fed.example.org:8443",
        "fedra federate admit chest st-mary.site",
        "fedra federate serve chest",
    ),
)
app.add_typer(federate_app, name="federate", rich_help_panel=TRAIN)

Federation = Annotated[
    Path, typer.Argument(help="Folder of the federation, which `federate init` made.", metavar="FOLDER")
]
ConfigFile = Annotated[Path, typer.Argument(help="Configuration file (TOML).", metavar="CONFIG")]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        help="The fingerprint that you heard by telephone; compared instead of asking.",
        metavar="DIGITS",
        show_default="ask",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; accept what is shown.")]
Also = Annotated[
    list[str] | None,
    typer.Option(help="One more host name or IP address of the coordinator.", metavar="NAME", show_default="none"),
]


def print_files(console: Console, files: Mapping[str, str]) -> None:
    """Print names of files, each with what it is for."""
    width = max(map(len, files)) + 2
    for name, text in files.items():
        print_line(console, f"{name:<{width}}{text}")


def confirm_fingerprint(found: str, expected: str | None, yes: bool, question: str) -> None:
    """Raise unless a fingerprint is the expected one, or a person says that it is."""
    from fedra.errors import ConfigError
    from fedra.federation.keys import same_fingerprint

    if expected is not None:
        if not same_fingerprint(found, expected):
            raise ConfigError(
                f"the fingerprint must be {expected}, got {found}: the file was exchanged on its way; ask for it again"
            )
    elif not yes and not typer.confirm(question, default=False):
        raise ConfigError("the fingerprint was not confirmed, so nothing was done: ask for the file again")


@federate_app.command(
    epilog=examples(
        "fedra federate init chest config.toml --address fed.example.org:8443",
        "fedra federate init chest config.toml federation.sites=3 --address 10.0.0.7:8443",
    )
)
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to create for the federation.", metavar="FOLDER")],
    config: ConfigFile,
    overrides: Overrides = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Where sites reach this machine: host name or IP address, and port.",
            metavar="HOST:PORT",
            show_default="federation.address",
        ),
    ] = None,
    also: Also = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the federation.", metavar="NAME", show_default="the folder's name")
    ] = None,
) -> None:
    """Create a federation: its plan, its keys and its invitation.

    The data are described by `[data]` with `name = "sites"`, `shape` and `classes`, or taken from a data set that
    you have. Settings of the rounds are in `[federation]`, such as `federation.sites` and `federation.deadline`.
    """
    from rich.console import Console

    from fedra.federation.coordinator_folder import create_federation, make_plan, read_settings
    from fedra.federation.site_config import require_name

    given = {} if address is None else {"address": address}
    title = require_name(name or folder.absolute().name, "a federation")
    plan = make_plan(*read_settings(config, overrides or (), name=title, **given))
    invitation = create_federation(folder, plan, also or ())
    console = Console()
    print_files(
        console,
        {
            f"{folder}/federation.toml": "the plan, with every default",
            f"{folder}/keys/": "keys of this federation; they never leave this machine",
            f"{folder}/{title}.invite": "give this to every site; it holds no secret",
        },
    )
    print_line(
        console, f"fingerprint of this federation: {invitation.fingerprint}   (say it to each site by telephone)"
    )
    print_line(console, f"plan digest: {plan.short_digest}")


@federate_app.command(
    epilog=examples(
        "fedra federate admit chest st-mary.site",
        "fedra federate admit chest st-mary.site --fingerprint '4c86 b507 3b42 2f6d 724b cb98 13cb 9361'",
    )
)
def admit(
    folder: Federation,
    request: Annotated[Path, typer.Argument(help="The file that the site sent.", metavar="SITE")],
    fingerprint: Fingerprint = None,
    yes: Yes = False,
) -> None:
    """Admit a site; a coordinator that runs lets it in at once."""
    from rich.console import Console

    from fedra.federation.admissions import admit_site, admitted_sites
    from fedra.federation.federation_plan import read_plan
    from fedra.federation.invitation import read_request

    read_plan(folder)
    site = read_request(request)
    question = f"{site.name}, fingerprint {site.fingerprint}. Is that what they told you?"
    confirm_fingerprint(site.fingerprint, fingerprint, yes, question)
    admit_site(folder, site)
    count = len(admitted_sites(folder))
    print_line(Console(), f"admitted {site.name}: {count} {'site' if count == 1 else 'sites'}")


@federate_app.command(epilog=examples("fedra federate remove chest st-mary --reason 'left the study'"))
def remove(
    folder: Federation,
    site: Annotated[str, typer.Argument(help="Name of the site.", metavar="NAME")],
    reason: Annotated[str, typer.Option(help="Why, for the record.", metavar="TEXT", show_default="none given")] = "",
) -> None:
    """Remove a site; a coordinator that runs refuses it at once."""
    from rich.console import Console

    from fedra.federation.admissions import admitted_sites, remove_site

    remove_site(folder, site, reason)
    count = len(admitted_sites(folder))
    print_line(Console(), f"removed {site}: {count} {'site' if count == 1 else 'sites'} left")


@federate_app.command(
    epilog=examples("fedra federate renew chest", "fedra federate renew chest --also fed2.example.org")
)
def renew(
    folder: Federation,
    also: Also = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Replace the server's key too.")] = False,
) -> None:
    """Renew the server's certificate for a year; sites need nothing new.

    The coordinator uses it from its next start on.
    """
    from rich.console import Console

    from fedra.federation.coordinator_folder import renew_federation
    from fedra.federation.keys import read_certificate, server_files, server_names

    invite = renew_federation(folder, also or (), new_key=new_key)
    certificate = read_certificate(server_files(folder).certificate)
    names = ", ".join(server_names(certificate)) or "this machine alone"
    print_line(Console(), f"valid until {certificate.not_valid_after_utc:%Y-%m-%d} for {names}; {invite} is up to date")


@federate_app.command(
    "flower-app",
    epilog=examples(
        "fedra federate flower-app config.toml --out my-app",
        "fedra federate flower-app config.toml rounds=5 --nodes 3 --out my-app",
    ),
)
def flower_app(
    config: ConfigFile,
    out: Annotated[Path, typer.Option(help="Folder to create for the app.", metavar="DIR")],
    overrides: Overrides = None,
    nodes: Annotated[
        int, typer.Option(help="Number of nodes that must be there before round one.", min=1, metavar="N")
    ] = 2,
) -> None:
    """Write a stock Flower app of a configuration, for `flwr run` in simulation or on a SuperLink with SuperNodes.

    Same algorithm and same result, but Flower's programs send code to every node and take longer per round.
    """
    from rich.console import Console

    from fedra.federation.flower_app import write_app

    write_app(config, overrides or (), out, nodes=nodes)
    print_line(Console(), f"{out} is a Flower app; {out}/README.md says how to run it")
