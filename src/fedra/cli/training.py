"""Commands that train, and the one that writes a configuration for them: run, sweep, demo and init."""

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
        "fedra run --resume runs/a rounds=50",
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
            help="Continue the run in this folder, or train it further (rounds=50).",
            metavar="DIR",
            show_default="start a new run",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device to train on, such as cuda.", metavar="NAME", show_default="the configuration's"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run in the output folder.")] = False,
    accept_data: Annotated[
        bool, typer.Option("--accept-data", help="Resume although the data changed since the run was started.")
    ] = False,
) -> None:
    """Train one configuration and save the results in a folder."""
    from rich.console import Console

    from fedra.errors import ConfigError

    if resume is not None and config is not None and "=" in config:  # an override in the place of CONFIG
        overrides = [config, *(overrides or [])]
        config = None
    overrides = [*(overrides or []), *([] if device is None else [f"device={device}"])]
    if (config is None) == (resume is None):
        given = "both" if config is not None else "neither"
        raise ConfigError(f"exactly one of CONFIG and --resume DIR must be given, got {given}")
    from fedra.config import reading as configuration
    from fedra.experiment import run as experiment

    console = Console()
    if resume is not None:
        rounds = _new_rounds(overrides)
        result = experiment.resume(resume, rounds=rounds, accept_data=accept_data, console=console)
    else:
        assert config is not None
        checked = configuration.read(config, overrides)
        folder = out or Path("runs") / ("stdin" if config == "-" else Path(config).stem)
        result = experiment.run(checked, out=folder, force=force, console=console)
    final = result.summary["final_accuracy"]
    kind = "verification accuracy" if result.summary["protocol"] == "verification" else "accuracy"
    if result.summary.get("rounds_tested_on") == "validation":
        kind = f"validation {kind}"
    whose = "the global model's " if "personalized_accuracy" in result.summary else ""
    outcome = "" if final is None else f"{whose}{kind} {final:.2%} after "
    if "collapsed" in result.summary:
        outcome = f"no accuracy ({result.summary['collapsed']}) after "
    rounds = result.summary["rounds"]
    print_line(console, f"{outcome}{rounds} round{'s' * (rounds != 1)}; everything is in {result.folder}")


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples("fedra init first.toml", "fedra init mine.toml data=cifar10 algorithm=scaffold"),
)
def init(
    file: Annotated[Path, typer.Argument(help="File to write; it must not exist.", metavar="FILE")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Settings for the file, such as algorithm=fedprox.", metavar="KEY=VALUE..."),
    ] = None,
) -> None:
    """Write a commented configuration file, with every default of its main sections."""
    from rich.console import Console

    from fedra.config import reading as configuration
    from fedra.config.template import write_template
    from fedra.errors import ConfigError

    if file.exists():
        raise ConfigError(f"'{file}' already exists: choose another name")
    given = ["data=digits", "partition=class-shards", "model=mlp", "local.lr=0.05", *(overrides or [])]
    text = write_template(configuration.read({}, given))
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "x", encoding="utf-8") as new:
        new.write(text)
    print_line(Console(), f"configuration saved to {file}; train it: fedra run {file}")


def _new_rounds(overrides: list[str]) -> int | None:
    """Return the number of rounds that a resumed run shall have; it takes no other override."""
    from fedra.config.overrides import parse_value
    from fedra.errors import ConfigError

    for word in overrides:
        key, _, value = word.partition("=")
        if key != "rounds" or not isinstance(parse_value(value), int):
            raise ConfigError(
                f"--resume takes no override but rounds=NUMBER, got '{word}': a run continues with its own settings"
            )
    return int(parse_value(overrides[-1].partition("=")[2])) if overrides else None


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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing: list the runs and estimate their time and memory.")
    ] = False,
) -> None:
    """Train a grid of settings and seeds, and tabulate the mean and standard deviation.

    A run that fails does not stop the others: its row shows why ("diverged in round 26") and counts it at chance level.
    The exit code is 0 if all runs finished and 3 if any failed.
    """
    from rich.console import Console

    from fedra.experiment import sweep as experiment

    folder = out or Path("runs") / f"{'stdin' if config == '-' else Path(config).stem}-sweep"
    if dry_run:
        _show_cost(experiment.plan_sweep(config, grid or [], seeds, folder)[0])
        return
    _exit_if_failed(experiment.sweep(config, grid or [], seeds, folder, Console()))


def _show_cost(points: list[Point]) -> None:
    """Print the runs of a sweep, and what those that are not finished will cost."""
    from rich.console import Console

    from fedra.reproduce.estimate import estimate
    from fedra.storage.run_folder import RunFolder
    from fedra.trust import allow_imports

    console = Console()
    runs = [run for point in points for run in point.runs]
    for _, run, place in runs:
        state = "finished" if RunFolder(place).finished else f"{run.rounds} rounds"
        print_line(console, f"{place.name}: {state}")
    with allow_imports():
        print_line(console, str(estimate(runs, console)))


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
