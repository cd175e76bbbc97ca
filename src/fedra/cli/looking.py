"""Commands that look: at runs, at data, at what there is to choose from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import LOOK, ConfigArgument, Overrides, Trust, app, tell, wide_console


@app.command("compare", rich_help_panel=LOOK, epilog="Example: `fedra compare runs/fedavg runs/fedprox --out both.svg`")
def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="DIR...")],
    out: Annotated[Path, typer.Option(help="Where to draw the curves (.svg or .png).")] = Path("comparison.svg"),
    reach: Annotated[
        str | None, typer.Option(help="Also tell the first round at or above these accuracies.", metavar="0.85,0.9,...")
    ] = None,
) -> None:
    """A table and curves of several runs."""
    from fedra.reports.comparison import compare, read_shares

    console = wide_console()
    console.print(compare(runs, reach=read_shares(reach) if reach else (), out=out).table)
    tell(console, f"curves in {out}")


@app.command(rich_help_panel=LOOK, epilog="Example: `fedra split c.toml partition.alpha=0.05 --out split.png`")
def split(
    config: ConfigArgument,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Where to draw the split (.svg or .png).")] = Path("split.svg"),
    trust: Trust = False,
) -> None:
    """Show how the data are divided among clients."""

    from fedra.config import reading as configuration
    from fedra.config.imports import trusting
    from fedra.data.partition import client_names, table
    from fedra.data.partition.split_plot import draw
    from fedra.experiment.build import build_dataset, split_dataset

    checked = configuration.read(config, overrides or ())
    with trusting(checked, trust, "the configuration", ("data",)):
        dataset = build_dataset(checked)
    parts = split_dataset(checked, dataset)
    targets = dataset.train.targets.numpy()
    console = wide_console()
    names = () if dataset.groups is None else client_names(parts, dataset.groups.numpy(), dataset.group_names)
    console.print(table(parts, targets, dataset.classes, names))
    draw(parts, targets, dataset.classes, out)
    tell(console, f"picture in {out}")


KINDS = "methods, datasets, models, partitions, parts, runners, losses or schedules"


@app.command("list", rich_help_panel=LOOK, epilog="Example: `fedra list methods`")
def list_(
    kind: Annotated[str, typer.Argument(help=f"One of: {KINDS}.")],
    lines: Annotated[bool, typer.Option("--lines", help="Of methods: code lines, own and borrowed.")] = False,
) -> None:
    """What there is to choose from, each with its fields."""

    from fedra.catalog import lines_of_code, listing
    from fedra.errors import ConfigError

    if lines and kind != "methods":
        raise ConfigError(f"--lines goes with `fedra list methods`, not with '{kind}'")
    wide_console().print(lines_of_code() if lines else listing(kind))


@app.command(rich_help_panel=LOOK, epilog="Example: `fedra show c.toml algorithm.name=fedsol`")
def show(config: ConfigArgument, overrides: Overrides = None) -> None:
    """The configuration with its defaults, and the algorithm as its parts with formulas; nothing is imported."""
    from rich.console import Console

    from fedra.catalog import anatomy
    from fedra.config import reading as configuration
    from fedra.config.imports import imported_names
    from fedra.config.names import build_algorithm
    from fedra.config.resolve import resolve_defaults

    checked = resolve_defaults(configuration.read(config, overrides or ()), only_look=True)
    console = Console()
    tell(console, configuration.write(checked))
    if not imported_names(checked, ["algorithm"]):
        console.print(anatomy(build_algorithm(checked.algorithm)))
    for key, name in imported_names(checked).items():
        tell(console, f"{key} = '{name}' would be imported by `fedra run`; its fields and defaults are not shown")


@app.command(rich_help_panel=LOOK)
def doctor(
    run: Annotated[Path | None, typer.Argument(help="A run's folder, to verify its checkpoint.", metavar="RUN")] = None,
) -> None:
    """Versions, device, data root, and which extras are there; with RUN, whether its checkpoint is whole."""
    from rich.console import Console

    from fedra.doctor import examination, verify

    console = Console()
    if run is None:
        console.print(examination())
    else:
        verify(run, console)
