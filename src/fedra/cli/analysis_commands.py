"""Commands that analyze trained models: curvature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import INSPECT, CommandGroup, Trust, app, examples, print_line, wide_console
from fedra.cli.plot_commands import Device

analyze = CommandGroup(
    help="Analyze the trained models of runs.",
    epilog=examples("fedra analyze curvature runs/fedavg runs/fedsol --out curvature"),
)
app.add_typer(analyze, name="analyze", rich_help_panel=INSPECT)


@analyze.callback()
def _analyze() -> None:
    """Keep `curvature` a subcommand, although it is the only one."""


@analyze.command(
    epilog=examples(
        "fedra analyze curvature runs/fedavg runs/fedsol --out curvature",
        "fedra analyze curvature runs/first --examples 200 --planes none --out curvature",
    )
)
def curvature(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="Folder for the numbers and plots.", metavar="DIR")] = Path("curvature"),
    split: Annotated[
        str, typer.Option(help="Examples of the loss: train (of all clients) or test.", metavar="SPLIT")
    ] = "train",
    most: Annotated[
        int, typer.Option("--examples", help="Largest number of examples; more are sampled.", min=1, metavar="N")
    ] = 1000,
    top: Annotated[int, typer.Option(help="Number of eigenvalues.", min=1, metavar="N")] = 5,
    probes: Annotated[int, typer.Option(help="Random vectors for the trace and the density.", min=1, metavar="N")] = 4,
    steps: Annotated[int, typer.Option(help="Lanczos steps per random vector.", min=2, metavar="N")] = 20,
    planes: Annotated[
        str, typer.Option(help="Planes of the landscapes: eigenvectors, random, both or none.", metavar="NAME")
    ] = "both",
    points: Annotated[
        int, typer.Option(help="Points of a landscape along each direction, odd.", min=3, metavar="N")
    ] = 15,
    radius: Annotated[
        float, typer.Option(help="Largest offset along a unit eigenvector.", min=0.0, metavar="NUMBER")
    ] = 0.5,
    random_radius: Annotated[
        float,
        typer.Option(help="Largest offset along a random direction, in lengths of filters.", min=0.0, metavar="NUMBER"),
    ] = 1.0,
    picture: Annotated[str, typer.Option("--format", help="Format of the plots: svg, png or pdf.", metavar="NAME")] = (
        "svg"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the random samples.", min=0, metavar="N")] = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Measure the curvature of global models: eigenvalues and trace of the Hessian, its density, loss landscapes."""
    from rich.console import Console

    from fedra.experiment.analyze_curvature import analyze_curvature
    from fedra.reports.curvature_plots import curvature_table

    found = analyze_curvature(
        runs,
        out,
        split=split,
        examples=most,
        top=top,
        probes=probes,
        steps=steps,
        planes=planes,
        points=points,
        radius=radius,
        random_radius=random_radius,
        picture=picture,
        seed=seed,
        device=device,
        trust=trust,
        console=Console(stderr=True),
    )
    wide_console().print(curvature_table({name: one.curvature for name, one in found.items()}))
    print_line(Console(), f"numbers and plots saved to {out}")
