"""Commands for faces: `fedra faces paint`, `align`, `calibrate` and `verify`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import USE, CommandGroup, Trust, app, examples, print_line

if TYPE_CHECKING:
    from rich.console import Console

    from fedra.faces.recognition.face import Face
    from fedra.faces.recognition.thresholds import Decision

faces_app = CommandGroup(
    help="Recognize faces: align photos, enroll people, verify and identify them.",
    epilog=examples(
        "fedra faces align photos crops --detector yunet",
        "fedra faces enroll staff.gallery crops --model runs/faces",
        "fedra faces identify door-crop.jpg --gallery staff.gallery",
    ),
)
app.add_typer(faces_app, name="faces", rich_help_panel=USE)

Model = Annotated[
    Path,
    typer.Option(
        "--model", help="Folder of a finished run, an exported .onnx file, or a weight file.", metavar="RUN|FILE"
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        help="Network of a weight file, with its fields, such as mobilefacenet:embedding=512.",
        metavar="NAME[:...]",
        show_default="the run's",
    ),
]
Input = Annotated[str, typer.Option("--input", help="Input size of a weight file's network.", metavar="HxW")]
FileInput = Annotated[
    str | None,
    typer.Option("--input", help="Input size of a weight file's network.", metavar="HxW", show_default="112x112"),
]
DETECTOR_HELP = (
    "Face detector: YuNet's .onnx file, a folder with MTCNN's three files, or yunet to download the public file."
)
DetectorOption = Annotated[
    str | None,
    typer.Option(
        "--detector",
        help=DETECTOR_HELP,
        metavar="PATH|yunet",
        show_default="none; photos must be aligned crops",
    ),
]
Device = Annotated[str, typer.Option(help="Device to run the model on, such as cpu or cuda:0.", metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
NO_THRESHOLD = "no decision, because the model has no threshold: choose one with `fedra faces calibrate`"


@faces_app.command(
    epilog=examples(
        "fedra faces paint photos --people 20 --images 6",
        "fedra faces align photos crops --points photos/points.json",
    )
)
def paint(
    folder: Annotated[Path, typer.Argument(help="New folder to write the photos to.", metavar="DIR")],
    people: Annotated[int, typer.Option(help="Number of people.", min=1, metavar="N")] = 20,
    images: Annotated[int, typer.Option(help="Number of photos per person.", min=1, metavar="N")] = 6,
    clients: Annotated[
        int | None,
        typer.Option(
            help="Distribute the people over this many client folders.",
            min=1,
            metavar="N",
            show_default="no client folders",
        ),
    ] = None,
    first_person: Annotated[
        int, typer.Option(help="Number of the first person; each number is a different person.", min=0, metavar="N")
    ] = 0,
    first_image: Annotated[
        int, typer.Option(help="Number of each person's first photo; each number is a new one.", min=0, metavar="N")
    ] = 0,
    size: Annotated[str, typer.Option(help="Height and width of a photo in pixels.", metavar="HxW")] = "240x320",
    seed: Annotated[int, typer.Option(help="Random seed; each seed gives different people.", min=0, metavar="N")] = 0,
    strength: Annotated[
        list[str] | None,
        typer.Option(
            help="How strongly pose, light, expression, occlusion, background or noise varies, such as light=0.5. "
            "Can be repeated.",
            metavar="NAME=VALUE",
            show_default="1 for each",
        ),
    ] = None,
) -> None:
    """Draw photos of synthetic people, with their facial landmarks, for trying the other commands."""
    from rich.console import Console

    from fedra.faces.recognition.model_source import read_size
    from fedra.faces.synthetic import PhotoSettings, SyntheticFaces, write_photos
    from fedra.faces.synthetic.traits import read_strengths

    height, width = read_size(size)
    written = write_photos(
        folder,
        SyntheticFaces(seed, knobs=read_strengths(strength or ())),
        identities=people,
        images=images,
        first_identity=first_person,
        first_image=first_image,
        clients=clients or 0,
        settings=PhotoSettings(height=height, width=width),
    )
    print_line(Console(), f"{people * images} photos of {people} people and points.json written to {written}")


@faces_app.command(
    epilog=examples(
        "fedra faces align photos crops --detector yunet",
        "fedra faces align photos crops --points photos/points.json",
    )
)
def align(
    source: Annotated[Path, typer.Argument(help="Folder tree with the photos.", metavar="SRC")],
    target: Annotated[Path, typer.Argument(help="Folder for the crops, with the same tree.", metavar="DST")],
    detector: Annotated[
        str | None,
        typer.Option(help=DETECTOR_HELP, metavar="PATH|yunet", show_default="none; --points is needed"),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with known facial landmarks, instead of a detector.",
            metavar="FILE",
            show_default="none; --detector is needed",
        ),
    ] = None,
    size: Annotated[int, typer.Option(help="Side length of the crops in pixels.", metavar="N")] = 112,
    format: Annotated[str, typer.Option(help="File format of the crops: jpg, or png (lossless).", metavar="EXT")] = (
        "jpg"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files in DST.")] = False,
) -> None:
    """Find the main face in every photo and write an aligned crop, skipping photos that are already done."""
    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.faces.photos.align_folder import SKIPPED, align_folder, check_format
    from fedra.faces.photos.detectors import open_detector
    from fedra.faces.photos.known_points import KnownPoints

    if (detector is None) == (points is None):
        given = "both" if detector is not None else "neither"
        raise ConfigError(f"exactly one of --detector and --points must be given, got {given}")
    checked = check_format(format)
    finder = KnownPoints(points) if points else open_detector(detector or "")
    progress = Console(stderr=True)
    outcome = align_folder(source, target, finder, size=size, format=checked, force=force, console=progress)
    report = f"{outcome.made} faces aligned"
    report += f", {outcome.there} already done" if outcome.there else ""
    report += f", {len(outcome.skipped)} skipped (see {target / SKIPPED})" if outcome.skipped else ""
    print_line(Console(), f"{report}; crops in {target}")


@faces_app.command(epilog=examples("fedra faces calibrate --model runs/faces --on lfw --far 1e-3"))
def calibrate(
    model: Model,
    on: Annotated[
        str,
        typer.Option(
            help="Photos to calibrate on: a folder with one folder per person, or a data set.",
            metavar="DIR|NAME[:...]",
        ),
    ],
    far: Annotated[
        float,
        typer.Option(
            help="Target false accept rate: the share of pairs of different people to accept.", metavar="RATE"
        ),
    ] = 1e-3,
    detector: DetectorOption = None,
    network: Network = None,
    input: FileInput = None,
    device: Device = "cpu",
    trust: Trust = False,
) -> None:
    """Choose the threshold for a target false accept rate and save it with the model."""
    from rich.console import Console

    from fedra.faces.recognition.calibrate import calibrate as choose_threshold
    from fedra.faces.recognition.recognizer import FaceRecognizer

    notes, console = Console(stderr=True), Console()
    recognizer = FaceRecognizer(model, detector, network=network, input=input, device=device, trust=trust)
    found = choose_threshold(recognizer, on, far, console=notes)
    print_lines(notes, found.problems)
    decision = found.decision
    accepted = (
        f", and {decision.tar:.2%} of {decision.genuine:,} pairs of the same person" if decision.tar is not None else ""
    )
    print_line(
        console,
        f"threshold {decision.value:.4f} accepts {decision.attained:.3g} of {decision.impostors:,} pairs of different "
        f"people{accepted}; saved to {found.path}",
    )
    print_line(console, f"the rate was measured on {decision.people} people{_format_interval(decision.interval)}")
    for template in decision.templates:
        print_line(
            console,
            f"for templates of {template.photos} photos: threshold {template.value:.4f} accepts "
            f"{template.attained:.3g} of {template.impostors:,} comparisons with other people"
            f"{_format_interval(template.interval)}",
        )
    if decision.warning:
        print_line(notes, f"note: {decision.warning}")


@faces_app.command(epilog=examples("fedra faces verify a.jpg b.jpg --model runs/faces --detector yunet"))
def verify(
    first: Annotated[Path, typer.Argument(help="First photo.", metavar="A")],
    second: Annotated[Path, typer.Argument(help="Second photo.", metavar="B")],
    model: Model,
    detector: DetectorOption = None,
    network: Network = None,
    input: FileInput = None,
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Decide whether two photos show the same person."""
    from rich.console import Console

    from fedra.faces.recognition.recognizer import FaceRecognizer

    recognizer = FaceRecognizer(model, detector, network=network, input=input, device=device, trust=trust)
    with without_warnings():
        found = recognizer.verify(first, second)
    if as_json:
        faces = [face_record(face) for face in found.faces]
        print_json(score=found.score, **decision_record(found.decision, found.threshold, found.same), faces=faces,
                   notes=found.notes, done=recognizer.preparation)  # fmt: skip
        return
    console = Console()
    print_lines(Console(stderr=True), found.notes)
    print_line(console, f"each photo was {recognizer.preparation}")
    if found.decision is None:
        print_line(console, f"score {found.score:.4f}; {NO_THRESHOLD}")
    else:
        verdict = "the same person" if found.same else "different people"
        print_line(console, f"score {found.score:.4f}, {format_threshold(found.decision, found.threshold)}: {verdict}")


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence `FaceWarning`: commands print the same text from the notes of the result."""
    from fedra.faces.recognition.face import FaceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FaceWarning)
        yield


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print each text on its own line."""
    for line in lines:
        print_line(console, line)


def format_threshold(decision: Decision, threshold: float | None) -> str:
    """Describe a threshold and where it comes from."""
    return f"threshold {threshold:.4f} (FAR {decision.far:g} on {decision.data})"


def decision_record(decision: Decision | None, threshold: float | None, accepted: bool | None) -> dict[str, object]:
    """Return a threshold and its decision for JSON."""
    return {"threshold": threshold, "far": decision.far if decision else None, "accepted": accepted}


def face_record(face: Face) -> dict[str, object]:
    """Return a face's box and detection score for JSON."""
    return {"box": [round(float(side), 1) for side in face.box], "detection_score": face.score}


def print_json(**result: object) -> None:
    """Print a result to standard output as JSON."""
    import json

    typer.echo(json.dumps(result, indent=2))


def _format_interval(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return " (too few errors for a confidence interval)"
    return f" (95 % interval {interval[0]:.2g} to {interval[1]:.2g})"
