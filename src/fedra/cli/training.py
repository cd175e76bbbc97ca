"""Commands that train: run, sweep and demo."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import TRAIN, ConfigArgument, Grid, OptionalConfig, Overrides, app, tell
from fedra.errors import SOME_RUNS_FAILED

if TYPE_CHECKING:
    from fedra.reports.sweep_table import Cell, Point


@app.command(rich_help_panel=TRAIN,
             epilog="Examples: `fedra run c.toml --out runs/a` · `fedra run c.toml rounds=5 algorithm.mu=0.1` · "
             "`fedra run --resume runs/a`")  # fmt: skip
def run(
    config: OptionalConfig = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run's record.", show_default="runs/CONFIG")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is in the folder.")] = False,
) -> None:
    """Train one configuration and keep its record in a folder."""
    from rich.console import Console

    from fedra.errors import ConfigError

    if (config is None) == (resume is None):
        raise ConfigError("give either a CONFIG to run or --resume DIR to continue a run")
    from fedra.config import reading as configuration
    from fedra.experiment import run as experiment

    console = Console()
    if resume is not None:
        if overrides:
            raise ConfigError("--resume takes no overrides: a run goes on as it was begun")
        result = experiment.resume(resume, console=console)
    else:
        assert config is not None
        checked = configuration.read(config, overrides or ())
        folder = out or Path("runs") / ("stdin" if config == "-" else Path(config).stem)
        result = experiment.run(checked, out=folder, force=force, console=console)
    final = result.summary["final_accuracy"]
    kind = "verification accuracy" if result.summary["protocol"] == "verification" else "accuracy"
    whose = "the global model's " if "personalized_accuracy" in result.summary else ""
    told = "" if final is None else f"{whose}{kind} {final:.2%} after "
    if "collapsed" in result.summary:
        told = f"no accuracy ({result.summary['collapsed']}) after "
    tell(console, f"{told}{result.summary['rounds']} rounds; everything is in {result.folder}")


@app.command(
    rich_help_panel=TRAIN,
    epilog="Example: `fedra sweep c.toml algorithm.name=fedavg,fedprox local.lr=0.1,0.01 --seeds 3 --out sweep`",
)
def sweep(
    config: ConfigArgument,
    grid: Grid = None,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs.", show_default="runs/CONFIG-sweep")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds per point, from the configuration's own on.", min=1)
    ] = None,
) -> None:
    """Run a grid of settings and seeds, and tabulate mean and deviation.

    A run that fails does not stop the others: its row says how ("diverged in round 26") and counts it at chance level.
    The exit code is then 3, and 0 if no run failed.
    """
    from rich.console import Console

    from fedra.experiment import sweep as experiment

    folder = out or Path("runs") / f"{'stdin' if config == '-' else Path(config).stem}-sweep"
    _exit_by(experiment.sweep(config, grid or [], seeds, folder, Console()))


def _exit_by(cells: Iterable[tuple[Point, Cell]]) -> None:
    """Exit with a code of its own where some runs failed."""
    if any(cell.failed for _, cell in cells):
        raise typer.Exit(SOME_RUNS_FAILED)


class DemoPart(StrEnum):
    """What a demonstration shows."""

    digits = "digits"
    faces = "faces"
    all = "all"


@app.command(rich_help_panel=TRAIN, epilog="Examples: `fedra demo` · `fedra demo --part faces` for one part alone")
def demo(
    part: Annotated[
        DemoPart, typer.Option(help="digits: methods compared; faces: from photographs to names; or all.")
    ] = DemoPart.all,
    out: Annotated[Path, typer.Option(help="Folder for all results.")] = Path("runs/demo"),
) -> None:
    """Show it all on data that come along: methods compared, faces named.

    A method that diverges has its row in the table and does not stop the rest. The exit code is then 3.
    """
    from rich.console import Console

    from fedra import demo as demonstration

    console = Console()
    cells = [] if part is DemoPart.faces else demonstration.compare_methods(out / "digits", console)
    if part is not DemoPart.digits:
        demonstration.recognize_faces(out / "faces", console)
    _exit_by(cells)
