"""Commands that inspect runs, data and what is available: compare, split, list, show and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import INSPECT, ConfigArgument, Overrides, Trust, app, examples, print_line, wide_console


@app.command(
    "compare",
    rich_help_panel=INSPECT,
    epilog=examples(
        "fedra compare runs/fedavg runs/fedprox --out both.svg",
        "fedra compare runs/* --reach 0.8,0.9 --table runs.tex",
    ),
)
def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of sweeps.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="File for the plotted curves (.svg, .png or .pdf).", metavar="FILE")] = Path(
        "comparison.svg"
    ),
    table: Annotated[
        Path | None,
        typer.Option(help="File for the table (.csv, .json, .md or .tex).", metavar="FILE", show_default="none"),
    ] = None,
    reach: Annotated[
        str | None,
        typer.Option(
            help="Also show the first round that reaches each of these accuracies.",
            metavar="0.85,0.9,...",
            show_default="none",
        ),
    ] = None,
) -> None:
    """Compare runs in a table and plot their curves."""
    from fedra.reports.comparison import compare, read_shares

    console = wide_console()
    found = compare(runs, reach=read_shares(reach) if reach else (), out=out)
    console.print(found.table)
    for note in found.notes:
        print_line(console, note)
    if table is not None:
        found.save(table)
        print_line(console, f"table saved to {table}")
    print_line(console, f"curves saved to {out}")


@app.command(rich_help_panel=INSPECT, epilog=examples("fedra split config.toml partition.alpha=0.05 --out split.png"))
def split(
    config: ConfigArgument,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="File for the plot (.svg, .png or .pdf).", metavar="FILE")] = Path(
        "split.svg"
    ),
    trust: Trust = False,
) -> None:
    """Show how the data are partitioned among the clients."""

    from fedra.config import reading as configuration
    from fedra.config.imports import allow_trusted_imports
    from fedra.data.partition import client_names, table
    from fedra.data.partition.split_plot import draw
    from fedra.experiment.build import build_dataset, split_dataset

    checked = configuration.read(config, overrides or ())
    with allow_trusted_imports(checked, trust, "the configuration", ("data",)):
        dataset = build_dataset(checked)
    parts = split_dataset(checked, dataset)
    targets = dataset.train.targets.numpy()
    console = wide_console()
    names = () if dataset.groups is None else client_names(parts, dataset.groups.numpy(), dataset.group_names)
    console.print(table(parts, targets, dataset.classes, names))
    draw(parts, targets, dataset.classes, out)
    print_line(console, f"plot saved to {out}")


KINDS = "methods, datasets, models, partitions, parts, runners, losses or schedules"
LIST_WIDTH = 120
"""Columns of a list in a pipe or a file: its cells are folded, not cut."""


@app.command("list", rich_help_panel=INSPECT, epilog=examples("fedra list methods", "fedra list losses"))
def list_(
    kind: Annotated[
        str | None, typer.Argument(help=f"What to list: {KINDS}.", metavar="KIND", show_default="the kinds")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="For methods, show lines of code instead: their own and imported.")
    ] = False,
) -> None:
    """List the available methods, data sets, models and other choices with their fields."""

    from fedra.catalog import count_code_lines, list_entries, list_kinds
    from fedra.errors import ConfigError

    if lines and kind != "methods":
        raise ConfigError(f"--lines can only be used with `fedra list methods`, got `fedra list {kind or ''}`")
    console = wide_console(LIST_WIDTH)
    if kind is None:
        console.print(list_kinds())
    else:
        console.print(count_code_lines() if lines else list_entries(kind))


@app.command(rich_help_panel=INSPECT, epilog=examples("fedra show config.toml algorithm.name=fedsol"))
def show(config: ConfigArgument, overrides: Overrides = None) -> None:
    """Show a configuration with its defaults, and the parts and formulas of its algorithm.

    Functions that the configuration names as module:function are not imported.
    """
    from rich.console import Console

    from fedra.catalog import algorithm_tree
    from fedra.config import reading as configuration
    from fedra.config.imports import imported_names
    from fedra.config.names import build_algorithm
    from fedra.config.resolve import resolve_defaults

    checked = resolve_defaults(configuration.read(config, overrides or ()), skip_imports=True)
    console = Console()
    print_line(console, configuration.write(checked))
    if not imported_names(checked, ["algorithm"]):
        console.print(algorithm_tree(build_algorithm(checked.algorithm)))
    for key, name in imported_names(checked).items():
        print_line(console, f"{key} = '{name}' would be imported by `fedra run`; its fields and defaults are not shown")


@app.command(rich_help_panel=INSPECT, epilog=examples("fedra doctor", "fedra doctor runs/first"))
def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(help="Folder of a run whose checkpoint is to be verified.", metavar="RUN", show_default="none"),
    ] = None,
) -> None:
    """Show versions, devices, the data root and installed extras, or verify the checkpoint of a run."""
    from rich.console import Console

    from fedra.doctor import examine_machine, verify_checkpoint

    console = Console()
    if run is None:
        console.print(examine_machine())
    else:
        verify_checkpoint(run, console)
