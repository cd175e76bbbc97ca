"""Kinds of `fedra plot` that show training dynamics, and the metric of a sweep against its factors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import examples, print_line
from fedra.cli.plot_commands import PLOT_HELP, plot

if TYPE_CHECKING:
    from fedra.reports.run_groups import Groups

SeedRuns = Annotated[
    list[Path],
    typer.Argument(help="Folders of runs; those that differ only in the seed are averaged.", metavar="RUN..."),
]
PlotFile = Annotated[Path, typer.Option(help=PLOT_HELP, metavar="FILE")]


def _draw(draw: Callable[[Groups, Path], None], runs: list[Path], out: Path) -> None:
    from rich.console import Console

    from fedra.reports.run_groups import group_runs

    draw(group_runs(runs), out)
    print_line(Console(), f"plot saved to {out}")


@plot.command(epilog=examples("fedra plot preservation runs/fedavg runs/fedsol"))
def preservation(runs: SeedRuns, out: PlotFile = Path("preservation.svg")) -> None:
    """Plot the accuracy on the global test set before and after local training, and by the client's classes.

    The runs need diagnostics.preservation=true.
    """
    from fedra.reports.dynamics_plots import draw_preservation

    _draw(draw_preservation, runs, out)


@plot.command(epilog=examples("fedra plot classes runs/fedavg runs/fedsol --out classes.png"))
def classes(runs: SeedRuns, out: PlotFile = Path("classes.svg")) -> None:
    """Plot the accuracy of each class over the rounds as a heat map, and forgetting.

    The runs need diagnostics.classes=true.
    """
    from fedra.reports.dynamics_plots import draw_classes

    _draw(draw_classes, runs, out)


@plot.command(epilog=examples("fedra plot updates runs/fedavg runs/fedsol"))
def updates(runs: SeedRuns, out: PlotFile = Path("updates.svg")) -> None:
    """Plot the norms of the clients' updates over the rounds, with their range and spread over clients."""
    from fedra.reports.dynamics_plots import draw_updates

    _draw(draw_updates, runs, out)


@plot.command(epilog=examples("fedra plot participation runs/first"))
def participation(runs: SeedRuns, out: PlotFile = Path("participation.svg")) -> None:
    """Plot which clients took part in which rounds, and whose uploads were dropped."""
    from fedra.reports.dynamics_plots import draw_participation

    _draw(draw_participation, runs, out)


@plot.command(epilog=examples("fedra plot sweep sweeps/rho --metric proximal_loss --out rho.svg"))
def sweep(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep.", metavar="SWEEP")],
    metric: Annotated[
        str,
        typer.Option(
            help="Number of summary.json, last value of metrics.jsonl, or mean over clients of the last round in "
            "clients.jsonl.",
            metavar="KEY",
        ),
    ] = "final_accuracy",
    factor: Annotated[
        str | None,
        typer.Option("--x", help="Swept key on the x axis.", metavar="KEY", show_default="the last with numbers"),
    ] = None,
    out: PlotFile = Path("factors.svg"),
) -> None:
    """Plot a metric of a sweep against one or two of its factors, with error bars over seeds."""
    from rich.console import Console

    from fedra.reports.sweep_factors import draw_sweep_factors, read_sweep

    draw_sweep_factors(read_sweep(folder, metric), out, metric, factor=factor)
    print_line(Console(), f"plot saved to {out}")
