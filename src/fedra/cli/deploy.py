"""Commands that use a trained model as it is: predict and export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import USE, Trust, app, examples, print_line, wide_console
from fedra.cli.faces import Input, Network

MOST_SHOWN = 50
"""Rows of the printed table; the file has all."""


@app.command(
    rich_help_panel=USE,
    epilog=examples("fedra predict runs/xray scan.png", "fedra predict runs/xray scans --top 3 --out answers.csv"),
)
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run that classifies images.", metavar="RUN")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.", metavar="IMAGE|DIR...")],
    top: Annotated[int, typer.Option(help="Number of classes per image.", min=1, metavar="N")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="File for all answers (.csv).", metavar="FILE", show_default="none")
    ] = None,
    trust: Trust = False,
) -> None:
    """Classify images with the model of a run."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedra.experiment.predict import predict as classify
    from fedra.experiment.predict import save_predictions

    found = classify(run, images, top=top, trust=trust, console=Console(stderr=True))
    table = Table("image", "class", "probability", header_style="bold")
    for one in found[:MOST_SHOWN]:
        shares = "\n".join(f"{share:.2%}" for share in one.probabilities)
        table.add_row(escape(str(one.image)), escape("\n".join(one.classes) or one.problem), shares)
    console = wide_console()
    console.print(table)
    if len(found) > MOST_SHOWN:
        print_line(console, f"{len(found) - MOST_SHOWN} more images are not shown: write all with --out")
    if out is not None:
        save_predictions(found, out)
        print_line(console, f"answers saved to {out}")


@app.command(
    rich_help_panel=USE,
    epilog=examples(
        "fedra export runs/faces faces.onnx --license 'CC BY-NC 4.0'",
        "fedra export net.pt faces.onnx --network mobilefacenet:embedding=128 --input 112x96",
    ),
)
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or a weight file.", metavar="RUN|FILE")],
    file: Annotated[
        Path, typer.Argument(help="ONNX file to write; the model card is written next to it.", metavar="MODEL.onnx")
    ],
    head: Annotated[bool, typer.Option("--head", help="Also output the logits of the training classes.")] = False,
    normalize: Annotated[
        bool, typer.Option("--normalize/--raw", help="Scale embeddings to unit length, or leave them as they are.")
    ] = True,
    license: Annotated[
        str | None,
        typer.Option(help="License of the weights, for the model card.", metavar="TEXT", show_default="not stated"),
    ] = None,
    network: Network = None,
    input: Input = "112x112",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    trust: Trust = False,
) -> None:
    """Export the embedding network of a run or a weight file to ONNX, with a model card."""
    from rich.console import Console

    from fedra.experiment.export import export as export_run
    from fedra.faces.recognition.model_source import read_size

    progress = Console(stderr=True)
    exported = export_run(
        run,
        file,
        head=head,
        normalize=normalize,
        license=license,
        network=network,
        size=read_size(input),
        force=force,
        trust=trust,
        console=progress,
    )
    print_line(
        Console(),
        f"{exported.file}: {exported.embedding}-dimensional embeddings, within {exported.difference:.1g} of PyTorch; "
        f"model card in {exported.card}",
    )
