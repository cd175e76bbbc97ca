"""Commands that judge a model: eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedra.cli.app import USE, Trust, app, tell, wide_console
from fedra.cli.faces import DetectorOption, Device, Input, Json, Network


@app.command("eval", rich_help_panel=USE,
             epilog="Examples: `fedra eval runs/faces --on lfw` · `fedra eval runs/faces --on crops "
             "--protocol identification` · `fedra eval net.pt --network mobilefacenet --on cfp_fp.bin`")  # fmt: skip
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
            help="The run's own test data, a data set with its fields, an InsightFace .bin file, a folder with LFW's "
            "pairs.txt or with a folder for each person or class, or a folder of IJB-B, IJB-C or MegaFace.",
            metavar="test|NAME[:...]|PATH",
        ),
    ] = "test",
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="classification, verification, identification, open-set; of the run's own data also clients and "
            "training-gallery. May be repeated.",
            show_default="what the run was trained for",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Metric of a classifier, such as auroc. May be repeated.", show_default="all of them"),
    ] = None,
    detector: DetectorOption = None,
    flip: Annotated[str, typer.Option(help="Mirror images too: none, sum or concatenate.")] = "none",
    pairs: Annotated[int | None, typer.Option(help="Pairs to draw where a set has none.", min=2)] = None,
    seed: Annotated[int, typer.Option(help="Seeds what is drawn at random.", min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the record and pictures.", show_default="the model's")
    ] = None,
    network: Network = None,
    input: Input = "112x112",
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Evaluate a model by the field's protocols."""
    from rich.console import Console

    from fedra.experiment.evaluating import evaluate as judge
    from fedra.faces.recognition.model_source import read_size
    from fedra.models.embedder import read_flip

    aside = Console(stderr=True)
    report = judge(
        model,
        on,
        protocol or (),
        metrics=metric or (),
        network=network,
        size=read_size(input),
        flip=read_flip(flip),
        detector=detector,
        pairs=pairs,
        seed=seed,
        device=device,
        trust=trust,
        console=aside,
    )
    path = report.save(out or (model.parent if model.is_file() else model), aside)
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"))
        return
    console = wide_console()
    report.print(console)
    tell(console, f"everything is in {path}")
