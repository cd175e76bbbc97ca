"""Commands that hand a model on: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import USE, Trust, app, tell


@app.command(rich_help_panel=USE, epilog="Example: `fedra export runs/faces faces.onnx --license 'CC BY-NC 4.0'`")
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    file: Annotated[Path, typer.Argument(help="File to write; its model card goes beside it.", metavar="MODEL.onnx")],
    head: Annotated[bool, typer.Option("--head", help="Also give the logits of the training classes.")] = False,
    normalize: Annotated[bool, typer.Option("--normalize/--raw", help="Embeddings of unit length, or as they are.")] = (
        True
    ),
    license: Annotated[str | None, typer.Option(help="License of the weights, for the card.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    trust: Trust = False,
) -> None:
    """Write a run's embedder as ONNX, with a model card."""
    from rich.console import Console

    from fedra.experiment.export import export as write

    aside = Console(stderr=True)
    done = write(run, file, head=head, normalize=normalize, license=license, force=force, trust=trust, console=aside)
    tell(
        Console(),
        f"{done.file}: embeddings of {done.embedding} numbers, at most {done.difference:.1g} from PyTorch; "
        f"card in {done.card}",
    )
