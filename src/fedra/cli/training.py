"""Commands that train: run, sweep and demo."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import TRAIN, ConfigArgument, Grid, OptionalConfig, Overrides, app, examples, print_line
from fedra.errors import SOME_RUNS_FAILED

if TYPE_CHECKING:
    from fedra.reports.sweep_table import Cell, Point


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "fedra run config.toml --out runs/a",
        "fedra run config.toml rounds=5 algorithm.mu=0.1",
        "fedra run --resume runs/a",
    ),
)
def run(
    config: OptionalConfig = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder of the run.", metavar="DIR", show_default="runs/CONFIG")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the interrupted run in this folder.", metavar="DIR", show_default="start a new run"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run in the output folder.")] = False,
) -> None:
    """Train one configuration and save the results in a folder."""
    from rich.console import Console

    from fedra.errors import ConfigError

    if (config is None) == (resume is None):
        given = "both" if config is not None else "neither"
        raise ConfigError(f"exactly one of CONFIG and --resume DIR must be given, got {given}")
    from fedra.config import reading as configuration
    from fedra.experiment import run as experiment

    console = Console()
    if resume is not None:
        if overrides:
            raise ConfigError(
                f"--resume takes no overrides, got '{overrides[0]}': a run continues with its own settings"
            )
        result = experiment.resume(resume, console=console)
    else:
        assert config is not None
        checked = configuration.read(config, overrides or ())
        folder = out or Path("runs") / ("stdin" if config == "-" else Path(config).stem)
        result = experiment.run(checked, out=folder, force=force, console=console)
    final = result.summary["final_accuracy"]
    kind = "verification accuracy" if result.summary["protocol"] == "verification" else "accuracy"
    whose = "the global model's " if "personalized_accuracy" in result.summary else ""
    outcome = "" if final is None else f"{whose}{kind} {final:.2%} after "
    if "collapsed" in result.summary:
        outcome = f"no accuracy ({result.summary['collapsed']}) after "
    print_line(console, f"{outcome}{result.summary['rounds']} rounds; everything is in {result.folder}")


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "fedra sweep config.toml algorithm.name=fedavg,fedprox --seeds 3",
        "fedra sweep config.toml local.lr=0.1,0.01 rounds=5 --out runs/lr",
    ),
)
def sweep(
    config: ConfigArgument,
    grid: Grid = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder of all runs.", metavar="DIR", show_default="runs/CONFIG-sweep")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Number of seeds per setting, counted up from the configuration's seed.",
            min=1,
            metavar="N",
            show_default="the configuration's, or 1",
        ),
    ] = None,
) -> None:
    """Train a grid of settings and seeds, and tabulate the mean and standard deviation.

    A run that fails does not stop the others: its row shows why ("diverged in round 26") and counts it at chance level.
    The exit code is 0 if all runs finished and 3 if any failed.
    """
    from rich.console import Console

    from fedra.experiment import sweep as experiment

    folder = out or Path("runs") / f"{'stdin' if config == '-' else Path(config).stem}-sweep"
    _exit_if_failed(experiment.sweep(config, grid or [], seeds, folder, Console()))


def _exit_if_failed(cells: Iterable[tuple[Point, Cell]]) -> None:
    """Exit with code 3 if some runs failed."""
    if any(cell.failed for _, cell in cells):
        raise typer.Exit(SOME_RUNS_FAILED)


class DemoPart(StrEnum):
    """The parts of the demo."""

    digits = "digits"
    faces = "faces"
    all = "all"


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples("fedra demo", "fedra demo --part faces", "fedra demo --quick --out runs/quick"),
)
def demo(
    part: Annotated[
        DemoPart,
        typer.Option(help="Part to run: digits compares methods, faces goes from photos to names, all runs both."),
    ] = DemoPart.all,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a small version in about 20 seconds, to check the installation.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Output folder.", metavar="DIR")] = Path("runs/demo"),
) -> None:
    """Compare five methods on digits and recognize synthetic faces, without any download.

    A method that diverges is shown in its row of the table and does not stop the rest; the exit code is then 3.
    """
    from rich.console import Console

    from fedra import demo as demos

    console = Console()
    compare = demos.compare_methods_quickly if quick else demos.compare_methods
    recognize = demos.recognize_faces_quickly if quick else demos.recognize_faces
    cells = [] if part is DemoPart.faces else compare(out / "digits", console)
    if part is not DemoPart.digits:
        recognize(out / "faces", console)
    _exit_if_failed(cells)
