"""Commands of a site: `fedra site init`, `check`, `approve`, `service`, `refresh`, `secret`, `renew` and `log`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import TRAIN, CommandGroup, app, examples, print_line
from fedra.cli.federate import Fingerprint, Yes, confirm_fingerprint, print_files

site_app = CommandGroup(
    help="Take part in a federation with images that stay here, under a policy of your own.",
    epilog=examples(
        "fedra site init mary chest.invite --name st-mary --data /data/xray",
        "fedra site check mary",
        "fedra site approve mary",
        "fedra site join mary",
    ),
)
app.add_typer(site_app, name="site", rich_help_panel=TRAIN)

Site = Annotated[Path, typer.Argument(help="Folder of the site, which `site init` made.", metavar="FOLDER")]


@site_app.command(
    epilog=examples(
        "fedra site init mary chest.invite --name st-mary --data /data/xray",
        "fedra site init mary chest.invite data.labels.Pneumonie=pneumonia policy.epochs=2 --data /data/xray",
        "fedra site init mary chest.invite --data /data/xray --fingerprint 52f55999b93145ec7e35cd1e0e1477bd",
    )
)
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to create for the site.", metavar="FOLDER")],
    invite: Annotated[Path, typer.Argument(help="The coordinator's invitation.", metavar="INVITE")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings of site.toml, such as data.labels.gerade=even.", metavar="KEY=VALUE..."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Your name in the federation.", metavar="NAME", show_default="the folder's name"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of your images, with one folder per class or person.",
            metavar="DIR",
            show_default="data.path of site.toml, to be filled in",
        ),
    ] = None,
    fingerprint: Fingerprint = None,
    yes: Yes = False,
) -> None:
    """Create a site from an invitation: its key, its policy, and the file for the coordinator."""
    from rich.console import Console

    from fedra.federation.invitation import read_invitation
    from fedra.federation.site_config import make_site, require_name
    from fedra.federation.site_folder import create_site_folder

    invitation = read_invitation(invite)
    title = require_name(name or folder.absolute().name, "a site")
    question = f"fingerprint of the federation: {invitation.fingerprint}. Is that what the coordinator told you?"
    confirm_fingerprint(invitation.fingerprint, fingerprint, yes, question)
    site = make_site(title, "" if data is None else str(data.absolute()), settings or ())
    request = create_site_folder(folder, invitation, site)
    console = Console()
    print_files(
        console,
        {
            f"{folder}/site.toml": "who you are, where the data are, and YOUR POLICY: read it",
            f"{folder}/key.pem": "your key; it never leaves this machine",
            f"{folder}/{title}.site": "send this to the coordinator; it holds no secret",
        },
    )
    print_line(console, f"your fingerprint: {request.fingerprint}   (say it to the coordinator by telephone)")


@site_app.command(epilog=examples("fedra site check mary", "fedra site check mary --long"))
def check(
    folder: Site,
    long: Annotated[bool, typer.Option("--long", help="List every tensor that leaves.")] = False,
    network: Annotated[
        bool, typer.Option("--network/--no-network", help="Connect to the coordinator, to see if it answers.")
    ] = True,
) -> None:
    """Check data, plan, policy and network, and say in plain words what leaves this site and what never does.

    The exit code is 0 if the site could join now, and 1 otherwise.
    """
    from rich.console import Console

    from fedra.federation.site_check import check_site_folder

    report = check_site_folder(folder, long=long, network=network)
    console = Console()
    for line in report.lines():
        print_line(console, line)
    if not report.ready:
        raise typer.Exit(1)


@site_app.command(epilog=examples("fedra site approve mary", "fedra site approve mary --yes"))
def approve(folder: Site, yes: Yes = False) -> None:
    """Approve the plan of the invitation; a plan with another digest asks again.

    Read what `fedra site check` prints first. Other sites see the same digest for the same plan.
    """
    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.federation.folder_side import FolderSide
    from fedra.federation.site_check import describe_plan
    from fedra.federation.site_folder import approve_plan, open_site_invitation

    plan = open_site_invitation(folder).plan
    if reasons := FolderSide(folder).check_policy(plan):
        raise ConfigError(f"the plan must be within your policy, got one that it refuses: {'; '.join(reasons)}")
    if not yes and not typer.confirm(f"{describe_plan(plan)}. Approve?", default=False):
        raise ConfigError("the plan was not approved, so nothing was done")
    approve_plan(folder, plan)
    print_line(Console(), f"approved {plan.short_digest}")


@site_app.command(epilog=examples("fedra site service mary"))
def service(folder: Site) -> None:
    """Print a systemd unit that keeps the site joined."""
    from fedra.federation.service_unit import format_unit

    typer.echo(format_unit(folder), nl=False)


@site_app.command(epilog=examples("fedra site refresh mary", "fedra site refresh mary --invite chest.invite"))
def refresh(
    folder: Site,
    invite: Annotated[
        Path | None,
        typer.Option(
            help="A newer invitation of the same federation: another plan or address.",
            metavar="FILE",
            show_default="keep the present one",
        ),
    ] = None,
) -> None:
    """Read the data anew after a change, or take a newer invitation.

    A site that takes part goes on with the data that it has, and changes over between two rounds.
    """
    from rich.console import Console

    from fedra.federation.invitation import read_invitation
    from fedra.federation.local_data.site_cache import has_fresh_data, refresh_data
    from fedra.federation.site_config import read_site
    from fedra.federation.site_folder import open_site_invitation, replace_invitation

    if invite is not None:
        replace_invitation(folder, read_invitation(invite))
    data = refresh_data(folder, read_site(folder), open_site_invitation(folder).plan.schema)
    console = Console()
    when = "; used from the next round on" if has_fresh_data(folder) else ""
    print_line(console, f"{len(data.inputs):,} images, {sum(data.test_sizes()):,} of them held out{when}")
    for warning in data.warnings:
        print_line(console, f"warning: {warning}")


@site_app.command(epilog=examples("fedra site secret mary", "fedra site secret turin --from match.secret"))
def secret(
    folder: Site,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="The file that another site made.", metavar="FILE", show_default="show it, or make one"
        ),
    ] = None,
) -> None:
    """Make, take or show the secret by which sites match their people; the coordinator must never have it.

    One site makes it, and hands the file over through a channel that the coordinator does not see. Compare the
    fingerprint by telephone. Make a new secret for every federation.
    """
    from rich.console import Console

    from fedra.federation.local_data.matching import SECRET, copy_secret, create_secret, read_secret, secret_fingerprint
    from fedra.federation.site_config import read_site

    read_site(folder)
    known = source is None and (folder / SECRET).exists()
    if source is not None:
        found = copy_secret(folder, source)
    else:
        found = read_secret(folder) if known else create_secret(folder)
    console = Console()
    if source is None and not known:
        print_line(console, f"{folder / SECRET}  give this to the other sites, and never to the coordinator")
    print_line(console, f"fingerprint of the sites' secret: {secret_fingerprint(found)}")


@site_app.command(epilog=examples("fedra site renew mary"))
def renew(folder: Site) -> None:
    """Renew the site's certificate for three years; the coordinator admits it again."""
    from rich.console import Console

    from fedra.federation.site_folder import renew_site_certificate

    path = renew_site_certificate(folder)
    print_line(Console(), f"send {path} to the coordinator; your fingerprint stays the same")


@site_app.command(epilog=examples("fedra site log mary", "fedra site log mary --tensors"))
def log(
    folder: Site,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor and number that left.")] = False,
) -> None:
    """Show everything that left the site, and check that the log was not changed.

    The last line has a hash: keep it elsewhere to notice a log that is cut short later.
    """
    from rich.console import Console

    from fedra.federation.audit_log import format_log, read_log, verify_log

    path = folder / "log.jsonl"
    count, last = verify_log(path)
    console = Console()
    for line in format_log(read_log(path), tensors=tensors):
        print_line(console, line)
    print_line(console, f"{count:,} lines, unchanged since they were written; hash of the last: {last}")
