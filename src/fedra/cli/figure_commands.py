"""Kinds of `fedra plot` that show runs with several seeds: curves, factor and what diagnostics record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import examples, print_line
from fedra.cli.plot_commands import PLOT_HELP, plot

if TYPE_CHECKING:
    from fedra.reports.run_groups import Groups

Runs = Annotated[
    list[Path],
    typer.Argument(help="Folders of runs; those that differ only in the seed are averaged.", metavar="RUN..."),
]


Out = Annotated[Path, typer.Option(help=PLOT_HELP, metavar="FILE")]


def _draw(draw: Callable[[Groups, Path], None], runs: list[Path], out: Path) -> None:
    from rich.console import Console

    from fedra.reports.run_groups import group_runs

    draw(group_runs(runs), out)
    print_line(Console(), f"plot saved to {out}")


@plot.command(epilog=examples("fedra plot curves runs/sweep/*_seed-* --smooth 0.6 --out curves.svg"))
def curves(
    runs: Runs,
    smooth: Annotated[
        float,
        typer.Option(help="Weight of the past in a moving average; 0 does not smooth.", min=0.0, metavar="NUMBER"),
    ] = 0.0,
    out: Out = Path("curves.svg"),
) -> None:
    """Plot accuracy and training loss over the rounds, averaged over seeds and smoothed."""
    from fedra.reports.round_plots import draw_smoothed

    _draw(lambda groups, path: draw_smoothed(groups, path, smooth), runs, out)


@plot.command(epilog=examples("fedra plot factor cohort.fraction runs/sweep/*_seed-* --out participation.svg"))
def factor(
    key: Annotated[str, typer.Argument(help="Setting on the x axis, such as local.epochs.", metavar="KEY")],
    runs: Runs,
    metric: Annotated[str, typer.Option(help="Key of summary.json on the y axis.", metavar="KEY")] = "final_accuracy",
    out: Out = Path("factor.svg"),
) -> None:
    """Plot a metric against a setting, one line per method, with error bars over seeds."""
    from rich.console import Console

    from fedra.reports.factor_plot import draw_factors, read_factor
    from fedra.reports.sweep_metric import SweepMetric

    draw_factors({key: read_factor(key, runs, metric)}, out, SweepMetric(metric).axis_label("test"))
    print_line(Console(), f"plot saved to {out}")


@plot.command("local-models", epilog=examples("fedra plot local-models runs/fedavg runs/fedsol"))
def local_models(runs: Runs, out: Out = Path("local-models.svg")) -> None:
    """Plot the accuracy of global and local models on the global test set, and of each class.

    The runs need diagnostics.preservation=true and diagnostics.classes=true.
    """
    from fedra.reports.round_plots import draw_local_models

    _draw(draw_local_models, runs, out)


@plot.command(epilog=examples("fedra plot proximal runs/fedavg runs/fedsol"))
def proximal(runs: Runs, out: Out = Path("proximal.svg")) -> None:
    """Plot the proximal loss of local models and the cosine of their updates with its gradient.

    The runs need diagnostics.proximal=true.
    """
    from fedra.reports.round_plots import draw_proximal

    _draw(draw_proximal, runs, out)


@plot.command(epilog=examples("fedra plot drift runs/fedavg runs/fedsol"))
def drift(runs: Runs, out: Out = Path("drift.svg")) -> None:
    """Plot how far each layer drifts from the global model, relative to its norm.

    The runs need diagnostics.proximal=true.
    """
    from fedra.reports.round_plots import draw_layers

    _draw(draw_layers, runs, out)


@plot.command(epilog=examples("fedra plot divergence runs/fedavg runs/fedsol"))
def divergence(runs: Runs, out: Out = Path("divergence.svg")) -> None:
    """Plot the distances of local models from the global model and from each other.

    The runs need diagnostics.divergence=true.
    """
    from fedra.reports.round_plots import draw_divergence

    _draw(draw_divergence, runs, out)


@plot.command("softmax-agreement", epilog=examples("fedra plot softmax-agreement runs/fedpe runs/fedgc"))
def softmax_agreement(runs: Runs, out: Out = Path("softmax-agreement.svg")) -> None:
    """Plot the cosine of the class vectors' update with that of a softmax over all classes.

    The runs need diagnostics.softmax_agreement=true.
    """
    from fedra.reports.round_plots import draw_softmax_agreement

    _draw(draw_softmax_agreement, runs, out)
