"""The command `fedra`. Commands import what they need when they run, so that help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedra import __version__
from fedra.errors import FedraError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="fedra",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Federated recognition with angular margins: train across clients whose images never move.",
    epilog="Begin with `fedra demo`, then `fedra run CONFIG.toml --out runs/first`.",
)

ConfigArgument = Annotated[str, typer.Argument(help="A TOML file, or - for standard input.", metavar="CONFIG")]
OptionalConfig = Annotated[str | None, typer.Argument(help="A TOML file, or - for standard input.", metavar="CONFIG")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings that replace the file's, e.g. local.epochs=5.", metavar="KEY=VALUE")
]
Grid = Annotated[list[str] | None, typer.Argument(help="key=a,b,c to vary; key=value to set.", metavar="KEY=A,B")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedra {__version__}")
        raise typer.Exit


VersionOption = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


def _tell(console: Console, text: str) -> None:
    """Plain words as they are: no markup, and no line broken where a path or a TOML line would suffer."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _wide_console() -> Console:
    """A console whose tables are not cut short in a pipe or a file, which have no width of their own."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)


@app.callback()
def _root(
    version: VersionOption = False,
) -> None:
    """Options that stand before any command."""


@app.command(epilog="Examples: `fedra run c.toml --out runs/a` · `fedra run c.toml rounds=5 algorithm.mu=0.1` · "
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
    from fedra.experiment import config as configuration
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
    told = "" if final is None else f"accuracy {final:.2%} after "
    _tell(console, f"{told}{result.summary['rounds']} rounds; everything is in {result.folder}")


@app.command(epilog="Example: `fedra compare runs/fedavg runs/fedprox --out both.svg`")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="DIR...")],
    out: Annotated[Path, typer.Option(help="Where to draw the curves (.svg or .png).")] = Path("comparison.svg"),
) -> None:
    """A table and curves of several runs."""
    from rich.console import Console

    from fedra.experiment.folder import RunFolder
    from fedra.experiment.report import compare_table, draw_curves, titles

    folders = [RunFolder(path) for path in runs]
    names = titles(folders)
    console = Console()
    console.print(compare_table(folders))
    draw_curves({name: folder.metrics() for name, folder in zip(names, folders, strict=True)}, out)
    _tell(console, f"curves in {out}")


@app.command(epilog="Example: `fedra split c.toml partition.alpha=0.05 --out split.png`")
def split(
    config: ConfigArgument,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Where to draw the split (.svg or .png).")] = Path("split.svg"),
) -> None:
    """Draw how the data are divided among clients, and print the label counts."""

    from fedra.data import load
    from fedra.data.partition import summary, table
    from fedra.data.partition.picture import draw
    from fedra.experiment import config as configuration
    from fedra.experiment.build import split_dataset

    checked = configuration.read(config, overrides or ())
    dataset = load(checked.data.name, **checked.data.settings)
    parts = split_dataset(checked, dataset)
    targets = dataset.train.targets.numpy()
    console = _wide_console()
    console.print(table(parts, targets, dataset.classes))
    _tell(console, "  ".join(f"{name} {value:g}" for name, value in summary(parts, targets).items()))
    draw(parts, targets, dataset.classes, out)
    _tell(console, f"picture in {out}")


KINDS = "methods, datasets, models, partitions, parts, runners or losses"


@app.command("list", epilog="Example: `fedra list methods`")
def list_(
    kind: Annotated[str, typer.Argument(help=f"One of: {KINDS}.")],
    lines: Annotated[bool, typer.Option("--lines", help="Of methods: the lines of code of each file.")] = False,
) -> None:
    """What there is to choose from, each with its fields."""

    from fedra.catalogue import lines_of_code, listing
    from fedra.errors import ConfigError

    if lines and kind != "methods":
        raise ConfigError(f"--lines goes with `fedra list methods`, not with '{kind}'")
    _wide_console().print(lines_of_code() if lines else listing(kind))


@app.command(epilog="Example: `fedra show c.toml algorithm.name=fedsol`")
def show(config: ConfigArgument, overrides: Overrides = None) -> None:
    """The resolved configuration, and the algorithm as its parts with formulas."""
    from rich.console import Console

    from fedra.catalogue import anatomy
    from fedra.experiment import config as configuration
    from fedra.experiment.build import resolved
    from fedra.experiment.naming import build_algorithm

    checked = resolved(configuration.read(config, overrides or ()))
    console = Console()
    _tell(console, configuration.write(checked))
    console.print(anatomy(build_algorithm(checked.algorithm)))


@app.command(
    epilog="Example: `fedra sweep c.toml algorithm.name=fedavg,fedprox local.lr=0.1,0.01 --seeds 3 --out sweep`"
)
def sweep(
    config: ConfigArgument,
    grid: Grid = None,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs.", show_default="runs/CONFIG-sweep")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds per point, from the configuration's own on.", min=1)
    ] = None,
) -> None:
    """Run a grid of settings and seeds, resumable run by run, and tabulate mean and standard deviation."""
    from rich.console import Console

    from fedra.experiment import sweep as experiment

    folder = out or Path("runs") / f"{'stdin' if config == '-' else Path(config).stem}-sweep"
    experiment.sweep(config, grid or [], seeds, folder, Console())


@app.command(epilog="Example: `fedra demo --out runs/demo`")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the demo's runs.")] = Path("runs/demo"),
) -> None:
    """Compare federated methods on embedded data: curves and a table within minutes."""
    from rich.console import Console

    from fedra.experiment.demo import demo as experiment

    experiment(out, Console())


@app.command()
def doctor() -> None:
    """Versions, device, data root, and which extras are there."""
    from rich.console import Console

    from fedra.doctor import examination

    Console().print(examination())


def main(arguments: list[str] | None = None) -> Any:
    """The entry point: a user's mistake is one sentence on standard error, never a traceback."""
    try:
        return app(args=arguments, standalone_mode=True)
    except FedraError as error:
        typer.echo(f"fedra: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        where = f"'{error.filename}'" if error.filename else "a file or the disk"
        typer.echo(f"fedra: {where} cannot be used: {error.strerror or error}", err=True)
        sys.exit(FedraError.exit_code)


if __name__ == "__main__":
    main()
