"""Commands for embeddings and plots: embed, plot margins, tsne, angles and class-vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import INSPECT, CommandGroup, Trust, app, examples, print_line, wide_console

plot = CommandGroup(
    help="Plot the margins of losses, the embeddings of models and the class vectors of runs.",
    epilog=examples("fedra plot margins arcface cosface", "fedra plot tsne runs/fedavg runs/fedarc"),
)
app.add_typer(plot, name="plot", rich_help_panel=INSPECT)

Sources = Annotated[
    list[Path], typer.Argument(help="Folders of runs, or files written by `fedra embed`.", metavar="RUN|FILE...")
]
Split = Annotated[
    str, typer.Option(help="Examples of a run to embed: test, or train with their clients.", metavar="SPLIT")
]
Device = Annotated[
    str | None,
    typer.Option(help="Device to run the model on, such as cpu or cuda:0.", metavar="NAME", show_default="the run's"),
]
Seed = Annotated[int, typer.Option(help="Seed of the random samples.", min=0, metavar="N")]
PLOT_HELP = "File for the plot (.svg, .png or .pdf)."


@app.command(rich_help_panel=INSPECT, epilog=examples("fedra embed runs/first --split train --out first.npz"))
def embed(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    split: Split = "test",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write (.safetensors or .npz).",
            metavar="FILE",
            show_default="RUN/embeddings-SPLIT.safetensors",
        ),
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale embeddings to unit length.")] = False,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Write the embeddings of a run's test or training examples to a file."""
    from rich.console import Console

    from fedra.experiment.embed_run import check_name, embed_run, save_embeddings

    path = out or run / f"embeddings-{split}.safetensors"
    check_name(path)
    found = embed_run(run, split=split, normalize=normalize, device=device, trust=trust, console=Console(stderr=True))
    save_embeddings(found, path)
    print_line(Console(), f"{len(found)} embeddings with {found.features.shape[1]} dimensions saved to {path}")


@plot.command(epilog=examples("fedra plot margins arcface arcface:margin=0.3 cosface --out m.svg"))
def margins(
    losses: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of losses (see `fedra list losses`), with fields after a colon.",
            metavar="NAME[:FIELD=VALUE]...",
            show_default="those of the adaptive margin's paper",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help=PLOT_HELP, metavar="FILE")] = Path("margins.svg"),
) -> None:
    """Plot the logits, margins and decision boundaries of losses side by side."""
    from rich.console import Console

    from fedra.config.names import read_loss
    from fedra.losses.boundaries import COMPARED, draw_margins

    draw_margins({word.replace(":", " "): read_loss(word) for word in losses or COMPARED}, out)
    print_line(Console(), f"plot saved to {out}")


@plot.command(epilog=examples("fedra plot tsne runs/fedavg runs/fedarc --out both.png"))
def tsne(
    sources: Sources,
    split: Split = "test",
    out: Annotated[Path, typer.Option(help=PLOT_HELP, metavar="FILE")] = Path("tsne.svg"),
    points: Annotated[
        int, typer.Option(help="Largest number of examples per source; more are sampled.", min=2, metavar="N")
    ] = 2000,
    perplexity: Annotated[
        float, typer.Option(help="Perplexity of t-SNE, roughly the number of neighbors.", min=1.0, metavar="NUMBER")
    ] = 30.0,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Plot embeddings in two dimensions with t-SNE, colored by class (needs the tsne extra)."""
    from rich.console import Console

    from fedra.analysis import tsne as method
    from fedra.console import steps
    from fedra.experiment.embed_run import gather_embeddings
    from fedra.reports.embedding_plots import draw_maps

    progress = Console(stderr=True)
    maps = {}
    for name, found in gather_embeddings(sources, split, device, progress, trust=trust).items():
        sample = found.sample(points, seed)
        with steps(progress, f"t-SNE of {name}", method.STEPS) as done:
            maps[name] = sample, method.tsne(sample, perplexity=perplexity, seed=seed, done=done)
    draw_maps(maps, out)
    print_line(Console(), f"plot saved to {out}")


@plot.command(epilog=examples("fedra plot pairs runs/fedpe runs/fedgc --out pairs.png"))
def pairs(
    sources: Sources,
    count: Annotated[int, typer.Option("--pairs", help="Number of pairs of classes.", min=1, max=8, metavar="N")] = 4,
    points: Annotated[
        int, typer.Option(help="Largest number of examples per class; more are sampled.", min=2, metavar="N")
    ] = 100,
    perplexity: Annotated[
        float, typer.Option(help="Perplexity of t-SNE, roughly the number of neighbors.", min=1.0, metavar="NUMBER")
    ] = 10.0,
    out: Annotated[Path, typer.Option(help=PLOT_HELP, metavar="FILE")] = Path("pairs.svg"),
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Plot the most similar classes of different clients: t-SNE maps and cosines (needs the tsne extra).

    The classes are the most similar ones of the first source; all sources show the same training examples, and their
    maps start from the first one's.
    """
    from rich.console import Console

    from fedra.experiment.embed_run import gather_embeddings
    from fedra.experiment.map_pairs import map_pairs
    from fedra.reports.embedding_plots import draw_pairs

    progress = Console(stderr=True)
    found = gather_embeddings(sources, "train", device, progress, trust=trust)
    mapped = map_pairs(found, count=count, points=points, perplexity=perplexity, seed=seed, console=progress)
    draw_pairs(mapped.maps, mapped.cosines, mapped.pairs, out)
    print_line(Console(), f"plot saved to {out}")


@plot.command(epilog=examples("fedra plot angles runs/fedavg runs/fedarc --split train --json"))
def angles(
    sources: Sources,
    split: Split = "test",
    out: Annotated[Path, typer.Option(help=PLOT_HELP, metavar="FILE")] = Path("angles.svg"),
    pairs: Annotated[
        int,
        typer.Option(
            help="Number of pairs of each kind to sample when there are more than 200 million.", min=1, metavar="N"
        ),
    ] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    seed: Seed = 0,
    device: Device = None,
    trust: Trust = False,
) -> None:
    """Plot and print the angles within and between classes, and across clients if they are known."""
    import json

    from rich.console import Console

    from fedra.analysis import angles as measure
    from fedra.console import steps
    from fedra.experiment.embed_run import gather_embeddings
    from fedra.reports.embedding_plots import angles_table, draw_angles

    progress = Console(stderr=True)
    measured = {}
    for name, found in gather_embeddings(sources, split, device, progress, trust=trust).items():
        with steps(progress, f"angles of {name}", measure.steps(len(found), pairs)) as done:
            measured[name] = measure.angles(found, pairs=pairs, seed=seed, done=done)
    draw_angles(measured, out)
    if as_json:
        typer.echo(json.dumps({name: it.metrics() for name, it in measured.items()}, indent=2))
    else:
        wide_console().print(angles_table(measured))
    print_line(progress if as_json else Console(), f"plot saved to {out}")


@plot.command(
    "class-vectors", epilog=examples("fedra plot class-vectors runs/fedpe runs/fedgc --out class-vectors.svg")
)
def class_vectors(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs with diagnostics.class_vectors=true.", metavar="RUN...")
    ],
    out: Annotated[Path, typer.Option(help=PLOT_HELP, metavar="FILE")] = Path("class-vectors.svg"),
) -> None:
    """Plot class vectors over the rounds: lengths, the server's steps, the nearest cosine across clients."""
    from rich.console import Console

    from fedra.reports.class_vector_plot import class_vectors_table, draw_class_vectors, read_class_vectors

    found = read_class_vectors(runs)
    draw_class_vectors(found, out)
    wide_console().print(class_vectors_table(found))
    print_line(Console(), f"plot saved to {out}")
