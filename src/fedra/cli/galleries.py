"""Commands for galleries of faces: `fedra faces enroll`, `identify`, `gallery list` and `gallery remove`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import CommandGroup, Trust, examples, print_line
from fedra.cli.faces import (
    DETECTOR_HELP,
    NO_THRESHOLD,
    Device,
    FileInput,
    Json,
    Network,
    decision_record,
    face_record,
    faces_app,
    format_threshold,
    print_json,
    print_lines,
    without_warnings,
)

if TYPE_CHECKING:
    from rich.console import Console

    from fedra.faces.recognition.answers import IdentificationResult, PhotoIdentification
    from fedra.faces.recognition.gallery import Gallery

GalleryDetector = Annotated[
    str | None,
    typer.Option(
        "--detector",
        help=DETECTOR_HELP,
        metavar="PATH|yunet",
        show_default="the gallery's; if it has none, photos must be aligned crops",
    ),
]


@faces_app.command(
    epilog=examples(
        "fedra faces enroll staff.gallery photos --model runs/faces",
        "fedra faces enroll staff.gallery me.jpg --name Ada",
    )
)
def enroll(
    gallery: Annotated[Path, typer.Argument(help="Gallery file; created if it does not exist.", metavar="GALLERY")],
    photographs: Annotated[
        Path,
        typer.Argument(
            help="Folder with one folder of photos per person; with --name, a photo or folder of that person.",
            metavar="PHOTOS",
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a finished run, an exported .onnx file, or a weight file.",
            metavar="RUN|FILE",
            show_default="the gallery's",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the one person to enroll.", metavar="NAME", show_default="the folders' names"),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Add photos to people who are already enrolled.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace people who are already enrolled.")] = False,
    detector: GalleryDetector = None,
    network: Network = None,
    input: FileInput = None,
    device: Device = "cpu",
    trust: Trust = False,
) -> None:
    """Enroll people in a gallery, which stores embeddings, not photos."""
    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.faces.recognition.gallery import Gallery
    from fedra.faces.recognition.gallery_file import Existing

    if add and replace:
        raise ConfigError("at most one of --add and --replace may be given, got both")
    existing: Existing = "add" if add else "replace" if replace else "refuse"
    people = Gallery.open(
        gallery, model=model, detector=detector, network=network, input=input, device=device, trust=trust
    )
    notes = Console(stderr=True)
    with without_warnings():
        if name is None:
            found = people.enroll_folder(photographs, existing=existing, console=notes)
        else:
            found = people.enroll(name, photographs, existing=existing, console=notes)
    print_lines(notes, (*found.problems, *found.notes))
    if found.existing:
        names = ", ".join(found.existing)
        print_line(notes, f"already enrolled and left unchanged (use --add or --replace to change them): {names}")
    single = sum(count == 1 for count in found.people.values())
    from_one = f" ({single} from a single photo)" if single else ""
    total = sum(found.people.values())
    enrolled, photos = _count(len(found.people), "person", "people"), _count(total, "photo", "photos")
    print_line(Console(), f"{enrolled} enrolled{from_one} from {photos}, each {people.recognizer.preparation}")


@faces_app.command(
    epilog=examples(
        "fedra faces identify door.jpg --gallery staff.gallery",
        "fedra faces identify group.jpg --all --gallery staff.gallery",
    )
)
def identify(
    photographs: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.", metavar="PHOTO...")],
    gallery: Annotated[Path, typer.Option(help="Gallery file.", metavar="FILE")],
    all_faces: Annotated[
        bool, typer.Option("--all", help="Identify every face in a photo, not only the main one.")
    ] = False,
    top: Annotated[int, typer.Option(help="Number of most similar people to show.", min=1, metavar="N")] = 5,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Where the gallery's model is now, if it was moved.",
            metavar="RUN|FILE",
            show_default="the path in the gallery",
        ),
    ] = None,
    detector: GalleryDetector = None,
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Identify the enrolled person in a photo."""
    from rich.console import Console

    from fedra.faces.recognition.gallery import Gallery

    people = Gallery.open(gallery, model=model, detector=detector, device=device, create=False, trust=trust)
    answers = []
    notes, console = Console(stderr=True), Console()
    for answer in people.identify_each(photographs, top, all_faces=all_faces):
        answers.append(answer)
        if not as_json:
            _print_answer(console, notes, answer)
    if as_json:
        photos = [_answer_record(answer) for answer in answers]
        print_json(photos=photos, enrolled=len(people), done=people.recognizer.preparation)
    elif faces := [face for answer in answers for face in answer.faces]:
        print_line(console, f"each photo was {people.recognizer.preparation}")
        _print_error_rate(console, faces[0], people)
    if any(answer.problem for answer in answers):
        raise typer.Exit(1)


gallery_app = CommandGroup(
    help="List the people in a gallery, or remove one.",
    epilog=examples("fedra faces gallery list staff.gallery", "fedra faces gallery remove staff.gallery Ada"),
)
faces_app.add_typer(gallery_app, name="gallery")
GalleryFile = Annotated[Path, typer.Argument(help="Gallery file.", metavar="GALLERY")]


@gallery_app.command("list", epilog=examples("fedra faces gallery list staff.gallery"))
def list_(gallery: GalleryFile) -> None:
    """List the enrolled people and their numbers of photos."""
    from rich.console import Console

    from fedra.faces.recognition.gallery_file import GalleryContent

    people = GalleryContent.read(gallery)
    console = Console()
    for name, count in people.counts.items():
        print_line(console, f"{count:6}  {name}")
    model = people.about.model.path if people.about.model else "from Python"
    detector = people.about.detector or people.about.detector_fingerprint or "none"
    print_line(console, f"{_count(len(people), 'person', 'people')}; model {model}, detector {detector}")


@gallery_app.command(epilog=examples("fedra faces gallery remove staff.gallery Ada"))
def remove(
    gallery: GalleryFile, name: Annotated[str, typer.Argument(help="Name of the person to remove.", metavar="NAME")]
) -> None:
    """Remove a person from a gallery, and name other known files that still contain them."""
    from rich.console import Console

    from fedra.faces.recognition.gallery_changes import remove_person

    found = remove_person(gallery, name)
    print_lines(Console(stderr=True), found.elsewhere)
    print_line(Console(), f"removed '{name}'; {_count(found.left, 'person', 'people')} still enrolled")


def _print_answer(console: Console, notes: Console, answer: PhotoIdentification) -> None:
    if answer.problem is not None:
        print_line(notes, f"fedra: {answer.problem}")
    elif not answer.faces:
        print_line(notes, f"no face was found in '{answer.photo}'")
    for number, found in enumerate(answer.faces, 1):
        print_lines(notes, found.notes)
        which = f", face {number} of {len(answer.faces)}" if len(answer.faces) > 1 else ""
        left, top = (round(float(side)) for side in found.face.box[:2])
        width, height = found.face.size
        where = f", {width}x{height} pixels at {left}, {top}" if found.face.score is not None else ""
        detected = f", detection score {found.face.score:.2f}" if found.face.score is not None else ""
        print_line(console, f"{answer.photo}{which}{where}{detected}")
        for rank, match in enumerate(found.matches, 1):
            print_line(console, f"{rank:3}  {match.score:7.4f}  {match.name}")
        if found.decision is not None:
            print_line(console, f"{format_threshold(found.decision, found.threshold)}: {found.name or 'no match'}")


def _print_error_rate(console: Console, found: IdentificationResult, people: Gallery) -> None:
    if found.decision is None:
        print_line(console, NO_THRESHOLD)
        return
    number = f"with {_count(len(people), 'person', 'people')} enrolled"
    if found.false_accept is None:
        rate = "calibration saw too few errors to estimate how often an unknown person is falsely accepted"
        print_line(console, f"{number}, {rate}")
    else:
        rate = f"an unknown person is falsely accepted with a probability of {found.false_accept}"
        print_line(console, f"{number}, {rate}")


def _answer_record(answer: PhotoIdentification) -> dict[str, object]:
    return {
        "photo": str(answer.photo),
        "problem": answer.problem,
        "faces": [
            {
                "name": found.name,
                **decision_record(found.decision, found.threshold, found.accepted),
                "false_accept": found.false_accept and vars(found.false_accept),
                "matches": [{"name": match.name, "score": match.score} for match in found.matches],
                **face_record(found.face),
                "notes": found.notes,
            }
            for found in answer.faces
        ],
    }


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
