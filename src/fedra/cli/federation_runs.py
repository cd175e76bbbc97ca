"""Commands that connect: `fedra federate serve`, `status`, `stop` and `try`, and `fedra site join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import Overrides, examples, print_line
from fedra.cli.federate import ConfigFile, Federation, federate_app
from fedra.cli.site import Site, site_app

Listen = Annotated[
    str | None,
    typer.Option(
        help="Address to listen on, such as 10.0.0.7:8443.",
        metavar="HOST:PORT",
        show_default="the plan's port on all addresses of this machine",
    ),
]


@federate_app.command(
    epilog=examples(
        "fedra federate serve chest",
        "fedra federate serve chest --listen 10.0.0.7:8443",
        "fedra federate serve chest --detach",
    )
)
def serve(
    folder: Federation,
    listen: Listen = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Configuration whose data are the coordinator's own test set.", metavar="CONFIG", show_default="none"
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Go on in the background; the output goes to FOLDER/output.txt.")
    ] = False,
) -> None:
    """Run a federation: wait for its sites, then train; the same command goes on where it stopped.

    Ends by Ctrl-C or `fedra federate stop`, after the present round. The run's record is in FOLDER/run.
    """
    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.federation.coordinator_folder import read_test
    from fedra.federation.federation_plan import read_plan
    from fedra.federation.serving import serve_detached, serve_folder

    plan = read_plan(folder)
    if test is None and plan.federation.evaluation in ("server", "both"):
        raise ConfigError(
            f"federation.evaluation = '{plan.federation.evaluation}' needs the coordinator's own test set, got none: "
            "name a configuration with --test"
        )
    if detach:
        options = [*(["--listen", listen] if listen else []), *(["--test", str(test.absolute())] if test else [])]
        pid = serve_detached(folder, options)
        print_line(Console(), f"process {pid} serves this federation; its output is in {folder}/output.txt")
        print_line(
            Console(), f"watch it with `fedra federate status {folder}`, end it with `fedra federate stop {folder}`"
        )
        return
    own = None if test is None else read_test(test, plan)
    result = serve_folder(folder, Console(stderr=True), listen=listen, test=own)
    print_line(Console(), f"finished: {result.folder}/model.safetensors")


@federate_app.command(
    epilog=examples(
        "fedra federate status chest", "fedra federate status chest --data", "fedra federate status chest --json"
    )
)
def status(
    folder: Federation,
    data: Annotated[
        bool, typer.Option("--data", help="Show what the sites said of their data, with outliers marked.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print status.json instead.")] = False,
) -> None:
    """Show what a federation does now: its round, and each site with its last sign of life."""
    import json

    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.federation.federation_plan import read_plan
    from fedra.federation.serving import describe_process
    from fedra.federation.site_descriptions import description_notes, description_table
    from fedra.federation.status import status_line, status_table

    read_plan(folder)
    path = folder / "status.json"
    if not path.exists():
        raise ConfigError(f"'{folder}' must have been served once, got no status.json: run `fedra federate serve`")
    text = path.read_text(encoding="utf-8")
    if as_json:
        typer.echo(text, nl=False)
        return
    content = json.loads(text)
    console = Console()
    print_line(console, describe_process(folder, content) + status_line(content))
    if not data:
        console.print(status_table(content))
        return
    described = content.get("described", {})
    console.print(description_table(described))
    for line in description_notes(described):
        print_line(console, line)


@federate_app.command(epilog=examples("fedra federate stop chest", "fedra federate stop chest --wait"))
def stop(
    folder: Federation, wait: Annotated[bool, typer.Option("--wait", help="Return when it has stopped.")] = False
) -> None:
    """Stop a federation after its present round; `fedra federate serve` goes on later."""
    from rich.console import Console

    from fedra.federation.serving import ask_to_stop, wait_for_end

    ask_to_stop(folder)
    console = Console()
    print_line(console, "the coordinator stops after its present round")
    if wait:
        wait_for_end(folder, Console(stderr=True))
        print_line(console, "stopped")


@federate_app.command(
    "try",
    epilog=examples(
        "fedra federate try config.toml --out runs/try",
        "fedra federate try config.toml rounds=3 --sites 5 --out runs/try",
    ),
)
def try_out(
    config: ConfigFile,
    out: Annotated[Path, typer.Option(help="Folder of the run.", metavar="DIR")],
    overrides: Overrides = None,
    sites: Annotated[int, typer.Option(help="Number of sites.", min=1, metavar="N")] = 3,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Run the simulator too, and compare the models.")
    ] = True,
) -> None:
    """Rehearse a federation on this machine: real site processes over TLS, compared with the simulator.

    The clients of the configuration's partition are dealt to the sites. DIR is a run's folder.
    """
    from rich.console import Console

    from fedra.federation.rehearsal import rehearse

    found = rehearse(config, overrides or (), sites=sites, out=out, compare=compare, console=Console(stderr=True))
    console, summary = Console(), found.result.summary
    print_line(console, f"{summary['rounds']} rounds in {summary['seconds']:.1f} s: {out}/model.safetensors")
    if found.equal:
        print_line(console, "equal to the simulator's model, bit for bit")
    elif found.difference is not None:
        print_line(console, f"largest difference from the simulator's model: {found.difference:.2e}")
        raise typer.Exit(1)


@site_app.command(epilog=examples("fedra site join mary"))
def join(
    folder: Site,
    address: Annotated[
        str | None,
        typer.Option(
            help="Where the coordinator is.", metavar="HOST:PORT", show_default="the address of the invitation"
        ),
    ] = None,
) -> None:
    """Take part in the federation until it is over; after an interruption the same command goes on."""
    from rich.console import Console

    from fedra.federation.joining import join_federation

    console = Console()
    join_federation(folder, lambda line: print_line(console, line), address)
