"""Commands that look at margins and embeddings: embed, plot margins, plot tsne and plot angles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import LOOK, Trust, app, tell

plot = typer.Typer(no_args_is_help=True, help="Pictures of margins and embeddings.", rich_markup_mode="markdown")
app.add_typer(plot, name="plot", rich_help_panel=LOOK)

Sources = Annotated[
    list[Path], typer.Argument(help="Folders of runs, or files of `fedra embed`.", metavar="RUN|FILE...")
]
Split = Annotated[str, typer.Option(help="Of runs: test or train (which knows the clients).", metavar="SPLIT")]
Device = Annotated[str | None, typer.Option(help="Where to run the model.", show_default="the run's")]
Seed = Annotated[int, typer.Option(help="Seeds what is drawn at random.", min=0)]


@app.command(rich_help_panel=LOOK, epilog="Example: `fedra embed runs/first --split train --out first.npz`")
def embed(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    split: Split = "test",
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, .safetensors or .npz.", show_default="RUN/embeddings-SPLIT.safetensors"),
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Bring features to unit length.")] = False,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Write a model's embeddings to a file."""
    from rich.console import Console

    from fedra.experiment.embed_run import check_name, embed_run, save_embeddings

    path = out or run / f"embeddings-{split}.safetensors"
    check_name(path)
    found = embed_run(run, split=split, normalize=normalize, device=device, trust=trust, console=Console(stderr=True))
    save_embeddings(found, path)
    tell(Console(), f"{len(found)} embeddings of {found.features.shape[1]} numbers in {path}")


@plot.command(epilog="Example: `fedra plot margins arcface arcface:margin=0.3 adaptive-margin:m1=0.1 --out m.svg`")
def margins(
    losses: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of `fedra list losses`, with fields after a colon.",
            metavar="LOSS[:FIELD=VALUE,...]...",
            show_default="those of the adaptive margin's paper",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to draw (.svg or .png).")] = Path("margins.svg"),
) -> None:
    """Draw the logits, margins and decision boundaries of losses side by side."""
    from rich.console import Console

    from fedra.config.names import read_loss
    from fedra.losses.boundaries import COMPARED, draw_margins

    draw_margins({word.replace(":", " "): read_loss(word) for word in losses or COMPARED}, out)
    tell(Console(), f"picture in {out}")


@plot.command(epilog="Example: `fedra plot tsne runs/fedavg runs/fedarc --out both.png`")
def tsne(
    sources: Sources,
    split: Split = "test",
    out: Annotated[Path, typer.Option(help="Where to draw (.svg or .png).")] = Path("tsne.svg"),
    points: Annotated[int, typer.Option(help="At most so many examples of each source, drawn.", min=2)] = 2000,
    perplexity: Annotated[float, typer.Option(help="About how many neighbors a point has.", min=1.0)] = 30.0,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Map embeddings to the plane by t-SNE, colored by class (needs the extra tsne)."""
    from rich.console import Console

    from fedra.analysis import tsne as method
    from fedra.console import steps
    from fedra.experiment.embed_run import gather_embeddings
    from fedra.reports.embedding_plots import draw_maps

    aside = Console(stderr=True)
    maps = {}
    for name, found in gather_embeddings(sources, split, device, aside, trust=trust).items():
        sample = found.sample(points, seed)
        with steps(aside, f"t-SNE of {name}", method.STEPS) as done:
            maps[name] = sample, method.tsne(sample, perplexity=perplexity, seed=seed, done=done)
    draw_maps(maps, out)
    tell(Console(), f"picture in {out}")


@plot.command(epilog="Example: `fedra plot angles runs/fedavg runs/fedarc --split train --json`")
def angles(
    sources: Sources,
    split: Split = "test",
    out: Annotated[Path, typer.Option(help="Where to draw (.svg or .png).")] = Path("angles.svg"),
    pairs: Annotated[
        int, typer.Option(help="How many pairs of each kind are drawn where there are over 200 million.", min=1)
    ] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Draw and print the angles within and between classes, and across clients where they are known."""
    import json

    from rich.console import Console

    from fedra.analysis import angles as measure
    from fedra.cli.app import wide_console
    from fedra.console import steps
    from fedra.experiment.embed_run import gather_embeddings
    from fedra.reports.embedding_plots import angles_table, draw_angles

    aside = Console(stderr=True)
    measured = {}
    for name, found in gather_embeddings(sources, split, device, aside, trust=trust).items():
        with steps(aside, f"angles of {name}", measure.steps(len(found), pairs)) as done:
            measured[name] = measure.angles(found, pairs=pairs, seed=seed, done=done)
    draw_angles(measured, out)
    if as_json:
        typer.echo(json.dumps({name: it.figures() for name, it in measured.items()}, indent=2))
    else:
        wide_console().print(angles_table(measured))
    tell(aside if as_json else Console(), f"picture in {out}")
