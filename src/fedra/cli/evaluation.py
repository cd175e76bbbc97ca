"""The command that evaluates a model: eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import USE, Trust, app, examples, print_line, wide_console
from fedra.cli.faces import DetectorOption, Device, Input, Json, Network


@app.command(
    "eval",
    rich_help_panel=USE,
    epilog=examples(
        "fedra eval runs/faces --on lfw",
        "fedra eval runs/faces --on crops --protocol identification",
        "fedra eval net.pt --network mobilefacenet --on cfp_fp.bin",
    ),
)
def evaluate(
    model: Annotated[
        Path,
        typer.Argument(
            help="Folder of a finished run, or a weight file; for MegaFace also a folder of feature files.",
            metavar="RUN|FILE",
        ),
    ],
    on: Annotated[
        str,
        typer.Option(
            help="Data to evaluate on: the run's own test data; a data set with its fields; an InsightFace .bin file; "
            "a folder with LFW's pairs.txt; a folder with one folder per person or class; or a folder of IJB-B, IJB-C "
            "or MegaFace.",
            metavar="test|NAME[:...]|PATH",
        ),
    ] = "test",
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="Protocol: classification, verification, identification or open-set; on the run's own data also "
            "clients or training-gallery. Can be repeated.",
            metavar="NAME",
            show_default="the run's",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Metric of a classifier, such as auroc. Can be repeated.", metavar="NAME", show_default="all"
        ),
    ] = None,
    detector: DetectorOption = None,
    flip: Annotated[
        str,
        typer.Option(help="Whether to add the mirrored image's embedding: none, sum or concatenate.", metavar="HOW"),
    ] = "none",
    pairs: Annotated[
        int | None,
        typer.Option(
            help="Number of pairs to sample when the data define none.", min=2, metavar="N", show_default="up to 6,000"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random samples.", min=0, metavar="N")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the report and its plots.", metavar="DIR", show_default="the model's folder"),
    ] = None,
    network: Network = None,
    input: Input = "112x112",
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Evaluate a model with the standard protocols of the field."""
    from rich.console import Console

    from fedra.experiment.evaluating import evaluate as evaluate_model
    from fedra.faces.recognition.model_source import read_size
    from fedra.models.embedder import parse_flip

    progress = Console(stderr=True)
    report = evaluate_model(
        model,
        on,
        protocol or (),
        metrics=metric or (),
        network=network,
        size=read_size(input),
        flip=parse_flip(flip),
        detector=detector,
        pairs=pairs,
        seed=seed,
        device=device,
        trust=trust,
        console=progress,
    )
    path = report.save(out or (model.parent if model.is_file() else model), progress)
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"))
        return
    console = wide_console()
    report.print(console)
    print_line(console, f"report saved to {path}")
