"""Commands for faces, `fedra faces ...`: paint, align, calibrate and verify."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import USE, Trust, app, tell

if TYPE_CHECKING:
    from rich.console import Console

    from fedra.faces.recognition.face import Face
    from fedra.faces.recognition.thresholds import Decision

faces_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Faces: from photographs to names (align, enroll, identify).",
)
app.add_typer(faces_app, name="faces", rich_help_panel=USE)

Model = Annotated[Path, typer.Option("--model", help="Folder of a finished run, or a weight file.", metavar="RUN|FILE")]
Network = Annotated[
    str | None,
    typer.Option(help="Of a weight file: its network with its fields.", metavar="NAME[:FIELD=VALUE,...]"),
]
Input = Annotated[str, typer.Option("--input", help="Of a weight file: height x width it reads.", metavar="HxW")]
FileInput = Annotated[
    str | None,
    typer.Option("--input", help="Of a weight file: height x width it reads.", metavar="HxW", show_default="112x112"),
]
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
UNDECIDED = "no threshold is kept with the model, so nothing is decided: choose one with `fedra faces calibrate`"


@faces_app.command(epilog="Example: `fedra faces paint photos --people 20 --images 6`, then `fedra faces align photos "
                   "crops --points photos/points.json`")  # fmt: skip
def paint(
    folder: Annotated[Path, typer.Argument(help="A new folder for the photographs.", metavar="DIR")],
    people: Annotated[int, typer.Option(help="How many people.", min=1)] = 20,
    images: Annotated[int, typer.Option(help="Photographs of each.", min=1)] = 6,
    clients: Annotated[
        int | None, typer.Option(help="Put them into as many folders, one for each client.", min=1)
    ] = None,
    first_person: Annotated[int, typer.Option(help="Number of the first person.", min=0)] = 0,
    first_image: Annotated[int, typer.Option(help="Number of the first photograph of each.", min=0)] = 0,
    size: Annotated[str, typer.Option(help="Height x width of a photograph.", metavar="HxW")] = "240x320",
    seed: Annotated[int, typer.Option(help="Random seed; each seed gives different people.", min=0)] = 0,
    strength: Annotated[
        list[str] | None,
        typer.Option(
            help="How strongly pose, light, expression, occlusion, background or noise varies, 1 unless given; may be "
            "repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None,
) -> None:
    """Paint photographs of synthetic people, with the points of their faces, to try everything on."""
    from rich.console import Console

    from fedra.faces.recognition.model_source import read_size
    from fedra.faces.synthetic import PhotographSettings, SyntheticFaces, write_photographs
    from fedra.faces.synthetic.traits import read_strengths

    height, width = read_size(size)
    made = write_photographs(
        folder,
        SyntheticFaces(seed, knobs=read_strengths(strength or ())),
        identities=people,
        images=images,
        first_identity=first_person,
        first_image=first_image,
        clients=clients or 0,
        settings=PhotographSettings(height=height, width=width),
    )
    tell(Console(), f"{people * images} photographs of {people} people, and points.json, in {made}")


@faces_app.command(epilog="Example: `fedra faces align photos crops --detector yunet`")
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
    force: Annotated[bool, typer.Option("--force", help="Replace files in the places of crops.")] = False,
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


@faces_app.command(epilog="Example: `fedra faces calibrate --model runs/faces --on lfw --far 1e-3`")
def calibrate(
    model: Model,
    on: Annotated[
        str, typer.Option(help="A folder with a folder for each person, or a data set.", metavar="DIR|NAME[:...]")
    ],
    far: Annotated[float, typer.Option(help="False accept rate: share of different people that may pass.")] = 1e-3,
    detector: DetectorOption = None,
    network: Network = None,
    input: FileInput = None,
    device: Device = "cpu",
    trust: Trust = False,
) -> None:
    """Choose the model's threshold for a false accept rate, and keep it beside the model."""
    from rich.console import Console

    from fedra.faces.recognition.calibrate import calibrate as choose
    from fedra.faces.recognition.recognizer import FaceRecognizer

    aside, console = Console(stderr=True), Console()
    recognizer = FaceRecognizer(model, detector, network=network, input=input, device=device, trust=trust)
    found = choose(recognizer, on, far, console=aside)
    tell_all(aside, found.problems)
    decision = found.decision
    passed = (
        f"; {decision.tar:.2%} of {decision.genuine:,} pairs of one person pass" if decision.tar is not None else ""
    )
    tell(
        console,
        f"threshold {decision.value:.4f}: {decision.attained:.3g} of {decision.impostors:,} pairs of different people "
        f"pass{passed}; kept in {found.path}",
    )
    tell(console, f"the rate comes from {decision.people} people{_between(decision.interval)}")
    for one in decision.templates:
        tell(
            console,
            f"against templates of {one.photos} photographs: threshold {one.value:.4f}, {one.attained:.3g} of "
            f"{one.impostors:,} comparisons with other people pass{_between(one.interval)}",
        )
    if decision.warning:
        tell(aside, f"note: {decision.warning}")


@faces_app.command(epilog="Example: `fedra faces verify a.jpg b.jpg --model runs/faces --detector yunet`")
def verify(
    first: Annotated[Path, typer.Argument(help="A photograph.", metavar="A")],
    second: Annotated[Path, typer.Argument(help="Another.", metavar="B")],
    model: Model,
    detector: DetectorOption = None,
    network: Network = None,
    input: FileInput = None,
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Do two photographs show one person?"""
    from rich.console import Console

    from fedra.faces.recognition.recognizer import FaceRecognizer

    recognizer = FaceRecognizer(model, detector, network=network, input=input, device=device, trust=trust)
    with without_warnings():
        found = recognizer.verify(first, second)
    if as_json:
        shown = [shown_face(face) for face in found.faces]
        print_json(score=found.score, **judgment(found.decision, found.threshold, found.same), faces=shown,
                   notes=found.notes, done=recognizer.manner)  # fmt: skip
        return
    console = Console()
    tell_all(Console(stderr=True), found.notes)
    tell(console, f"each photograph was {recognizer.manner}")
    if found.decision is None:
        tell(console, f"score {found.score:.4f}; {UNDECIDED}")
    else:
        verdict = "the same person" if found.same else "different people"
        tell(console, f"score {found.score:.4f}, {described(found.decision, found.threshold)}: {verdict}")


@contextmanager
def without_warnings() -> Iterator[None]:
    """What Python callers receive as a `FaceWarning` is in the result too, from where commands print it."""
    from fedra.faces.recognition.face import FaceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FaceWarning)
        yield


def tell_all(console: Console, lines: Sequence[str]) -> None:
    """Each sentence on a line of its own."""
    for line in lines:
        tell(console, line)


def described(decision: Decision, threshold: float | None) -> str:
    """A threshold in words."""
    return f"threshold {threshold:.4f} (FAR {decision.far:g} on {decision.data})"


def judgment(decision: Decision | None, threshold: float | None, accepted: bool | None) -> dict[str, object]:
    """A threshold and what it says, for JSON."""
    return {"threshold": threshold, "far": decision.far if decision else None, "accepted": accepted}


def shown_face(face: Face) -> dict[str, object]:
    """Where a face is and how sure its detector, for JSON."""
    return {"box": [round(float(side), 1) for side in face.box], "detection_score": face.score}


def print_json(**result: object) -> None:
    """A result on standard output."""
    import json

    typer.echo(json.dumps(result, indent=2))


def _between(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return " (too few errors for an interval)"
    return f" (95 % interval {interval[0]:.2g} to {interval[1]:.2g})"
