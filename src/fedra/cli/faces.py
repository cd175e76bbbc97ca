"""Commands for faces: paint, align, calibrate and verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import app, tell

if TYPE_CHECKING:
    from fedra.faces.recognition.recognizer import FaceRecognizer, ModelSource
    from fedra.faces.recognition.thresholds import Decision

Model = Annotated[Path, typer.Option("--model", help="Folder of a finished run, or a weight file.", metavar="RUN|FILE")]
Network = Annotated[
    str | None,
    typer.Option(help="Of a weight file: its network with its fields.", metavar="NAME[:FIELD=VALUE,...]"),
]
Input = Annotated[str, typer.Option("--input", help="Of a weight file: height x width it reads.", metavar="HxW")]
DetectorOption = Annotated[
    str | None,
    typer.Option(
        "--detector",
        help="YuNet's .onnx file, a folder of MTCNN's three, or yunet for the public file; without one, photographs "
        "must be aligned crops.",
        metavar="PATH|yunet",
    ),
]
Device = Annotated[str, typer.Option(help="Where to run the model.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command(epilog="Example: `fedra paint photos --people 20 --images 6`, then `fedra align photos crops --points "
             "photos/points.json`")  # fmt: skip
def paint(
    folder: Annotated[Path, typer.Argument(help="A folder to make.", metavar="DIR")],
    people: Annotated[int, typer.Option(help="How many people.", min=1)] = 20,
    images: Annotated[int, typer.Option(help="Photographs of each.", min=1)] = 6,
    clients: Annotated[
        int | None, typer.Option(help="Put them into as many folders, one for each client.", min=1)
    ] = None,
    first_person: Annotated[int, typer.Option(help="Number of the first person.", min=0)] = 0,
    first_image: Annotated[int, typer.Option(help="Number of the first photograph of each.", min=0)] = 0,
    size: Annotated[str, typer.Option(help="Height x width of a photograph.", metavar="HxW")] = "240x320",
    seed: Annotated[int, typer.Option(help="Another world of people.", min=0)] = 0,
) -> None:
    """Paint photographs of people who do not exist, with the points of their faces, to try everything on."""
    from rich.console import Console

    from fedra.faces.recognition.recognizer import read_size
    from fedra.faces.synthetic import PhotographSettings, SyntheticFaces, write_photographs

    height, width = read_size(size)
    made = write_photographs(
        folder,
        SyntheticFaces(seed),
        identities=people,
        images=images,
        first_identity=first_person,
        first_image=first_image,
        clients=clients or 0,
        settings=PhotographSettings(height=height, width=width),
    )
    tell(Console(), f"{people * images} photographs of {people} people, and points.json, in {made}")


@app.command(epilog="Example: `fedra align photos crops --detector face_detection_yunet_2023mar.onnx`")
def align(
    source: Annotated[Path, typer.Argument(help="A tree of photographs.", metavar="SRC")],
    target: Annotated[Path, typer.Argument(help="Where the same tree of crops goes.", metavar="DST")],
    detector: Annotated[
        str | None,
        typer.Option(
            help="YuNet's .onnx file, a folder of MTCNN's three, or yunet for the public file.", metavar="PATH|yunet"
        ),
    ] = None,
    points: Annotated[
        Path | None, typer.Option(help="In place of a detector: a JSON file of known points.", metavar="FILE")
    ] = None,
    size: Annotated[int, typer.Option(help="Side of the crops in pixels.")] = 112,
    format: Annotated[str, typer.Option(help="jpg, or png which loses nothing.")] = "jpg",
    force: Annotated[bool, typer.Option("--force", help="Replace files that are in the crops' places.")] = False,
) -> None:
    """Find the main face of every photograph and align it; what is done already is not done again."""
    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.faces.photos.align_folder import SKIPPED, align_folder, check_format
    from fedra.faces.photos.detectors import open_detector
    from fedra.faces.photos.known_points import KnownPoints

    if (detector is None) == (points is None):
        raise ConfigError("give either a --detector to find faces or a file of known --points")
    written = check_format(format)
    finder = KnownPoints(points) if points else open_detector(detector or "")
    aside = Console(stderr=True)
    outcome = align_folder(source, target, finder, size=size, format=written, force=force, console=aside)
    done = f"{outcome.made} faces aligned"
    done += f", {outcome.there} were there already" if outcome.there else ""
    done += f", {len(outcome.skipped)} skipped (see {target / SKIPPED})" if outcome.skipped else ""
    tell(Console(), f"{done}; crops in {target}")


@app.command(epilog="Example: `fedra calibrate --model runs/faces --on lfw --far 1e-3`")
def calibrate(
    model: Model,
    on: Annotated[
        str, typer.Option(help="A folder with a folder for each person, or a data set.", metavar="DIR|NAME[:...]")
    ],
    far: Annotated[float, typer.Option(help="Share of different people that may pass as one.")] = 1e-3,
    detector: DetectorOption = None,
    network: Network = None,
    input: Input = "112x112",
    device: Device = "cpu",
) -> None:
    """Choose the model's threshold for a false accept rate, and keep it beside the model."""
    from rich.console import Console

    from fedra.faces.recognition.calibrate import calibrate as choose
    from fedra.faces.recognition.thresholds import save_decision

    aside = Console(stderr=True)
    source, recogniser = opened(model, network, input, detector, device)
    decision, problems = choose(recogniser, on, far, console=aside)
    for problem in problems:
        tell(aside, problem)
    path = save_decision(source, decision)
    passed = (
        f"; {decision.tar:.2%} of {decision.genuine:,} pairs of one person pass" if decision.tar is not None else ""
    )
    tell(
        Console(),
        f"threshold {decision.value:.4f}: {decision.attained:.3g} of {decision.impostors:,} pairs of different people "
        f"pass{passed}; kept in {path}",
    )
    if decision.warning:
        tell(aside, f"note: {decision.warning}")


@app.command(epilog="Example: `fedra verify a.jpg b.jpg --model runs/faces --detector yunet.onnx`")
def verify(
    first: Annotated[Path, typer.Argument(help="A photograph.", metavar="A")],
    second: Annotated[Path, typer.Argument(help="Another.", metavar="B")],
    model: Model,
    detector: DetectorOption = None,
    network: Network = None,
    input: Input = "112x112",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Do two photographs show one person?"""
    from rich.console import Console
    from torch.nn.functional import cosine_similarity

    from fedra.faces.recognition.thresholds import stored_decision

    source, recogniser = opened(model, network, input, detector, device)
    score = float(cosine_similarity(recogniser.embed_one(first), recogniser.embed_one(second)))
    decision = stored_decision(source, recogniser.fingerprint)
    if as_json:
        print_json(score=score, **judgement(decision, score), done=recogniser.manner)
        return
    console = Console()
    tell(console, f"each photograph was {recogniser.manner}")
    if decision is None:
        tell(console, f"score {score:.4f}; {UNDECIDED}")
    else:
        verdict = "the same person" if decision.accepts(score) else "different people"
        tell(console, f"score {score:.4f}, {told(decision)}: {verdict}")


UNDECIDED = "no threshold is kept with the model, so nothing is decided: choose one with `fedra calibrate`"


def opened(
    model: Path, network: str | None, input: str, detector: str | None, device: str
) -> tuple[ModelSource, FaceRecognizer]:
    """A model and its recogniser as the options give them."""
    from fedra.faces.recognition.recognizer import open_recognizer, read_size

    source = model_source(model, network, read_size(input))
    return source, open_recognizer(source, detector, device=device)


def model_source(model: Path, network: str | None, size: tuple[int, int]) -> ModelSource:
    """A model that can be found from any folder."""
    from fedra.faces.recognition.recognizer import ModelSource

    return ModelSource(path=str(model.resolve()), network=network, size=size)


def told(decision: Decision) -> str:
    """A threshold in words."""
    return f"threshold {decision.value:.4f} (FAR {decision.far:g} on {decision.data})"


def judgement(decision: Decision | None, score: float) -> dict[str, object]:
    """A threshold and what it says of a score, for JSON."""
    if decision is None:
        return {"threshold": None, "far": None, "accepted": None}
    return {"threshold": decision.value, "far": decision.far, "accepted": decision.accepts(score)}


def print_json(**result: object) -> None:
    """A result on standard output."""
    import json

    typer.echo(json.dumps(result, indent=2))
