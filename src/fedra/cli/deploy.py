"""The command that exports a model: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import USE, Trust, app, examples, print_line


@app.command(
    rich_help_panel=USE,
    epilog=examples("fedra export runs/faces faces.onnx --license 'CC BY-NC 4.0'"),
)
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    trust: Trust = False,
) -> None:
    """Export the embedding network of a run to ONNX, with a model card."""
    from rich.console import Console

    from fedra.experiment.export import export as export_run

    progress = Console(stderr=True)
    exported = export_run(
        run, file, head=head, normalize=normalize, license=license, force=force, trust=trust, console=progress
    )
    print_line(
        Console(),
        f"{exported.file}: {exported.embedding}-dimensional embeddings, within {exported.difference:.1g} of PyTorch; "
        f"model card in {exported.card}",
    )
