"""Commands for galleries of faces: `fedra faces enroll`, `identify`, `gallery list` and `gallery remove`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import Trust, tell
from fedra.cli.faces import (
    UNDECIDED,
    DetectorOption,
    Device,
    FileInput,
    Json,
    Network,
    described,
    faces_app,
    judgment,
    print_json,
    shown_face,
    tell_all,
    without_warnings,
)

if TYPE_CHECKING:
    from rich.console import Console

    from fedra.faces.recognition.answers import IdentificationResult, PhotoIdentification
    from fedra.faces.recognition.gallery import Gallery


@faces_app.command(epilog="Examples: `fedra faces enroll people.gallery photos --model runs/faces` · "
                   "`fedra faces enroll people.gallery me.jpg --name Ada`")  # fmt: skip
def enroll(
    gallery: Annotated[Path, typer.Argument(help="File of templates; made if needed.", metavar="GALLERY")],
    photographs: Annotated[
        Path, typer.Argument(help="A folder with a folder for each person; with --name, of one.", metavar="PHOTOS")
    ],
    model: Annotated[
        Path | None, typer.Option(help="Folder of a finished run, or a weight file.", show_default="the gallery's")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Whose photograph or photographs they are.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add photographs to people who are enrolled.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace people who are enrolled.")] = False,
    detector: DetectorOption = None,
    network: Network = None,
    input: FileInput = None,
    device: Device = "cpu",
    trust: Trust = False,
) -> None:
    """Put people into a gallery, which holds templates and never photographs."""
    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.faces.recognition.gallery import Gallery
    from fedra.faces.recognition.gallery_file import Existing

    if add and replace:
        raise ConfigError("--add and --replace exclude each other: give one of them")
    existing: Existing = "add" if add else "replace" if replace else "refuse"
    people = Gallery.open(
        gallery, model=model, detector=detector, network=network, input=input, device=device, trust=trust
    )
    aside = Console(stderr=True)
    with without_warnings():
        if name is None:
            found = people.enroll_folder(photographs, existing=existing, console=aside)
        else:
            found = people.enroll(name, photographs, existing=existing, console=aside)
    tell_all(aside, (*found.problems, *found.notes))
    if found.existing:
        names = ", ".join(found.existing)
        tell(aside, f"enrolled already, and left as they are (--add or --replace changes them): {names}")
    single = sum(count == 1 for count in found.people.values())
    alone = f" ({single} of them by a single photograph)" if single else ""
    total = sum(found.people.values())
    who, of_what = _counted(len(found.people), "person", "people"), _counted(total, "photograph", "photographs")
    tell(Console(), f"{who} enrolled{alone} from {of_what}, each {people.recognizer.manner}")


@faces_app.command(epilog="Examples: `fedra faces identify who.jpg --gallery people.gallery` · "
                   "`fedra faces identify group.jpg --all --gallery people.gallery`")  # fmt: skip
def identify(
    photographs: Annotated[list[Path], typer.Argument(help="Photographs, or folders of them.", metavar="PHOTO...")],
    gallery: Annotated[Path, typer.Option(help="File of templates.", metavar="GALLERY")],
    all_faces: Annotated[bool, typer.Option("--all", help="Name all faces of a photograph, not the main one.")] = False,
    top: Annotated[int, typer.Option(help="How many people to show.", min=1)] = 5,
    model: Annotated[Path | None, typer.Option(help="Where the model is now.", show_default="the gallery's")] = None,
    detector: DetectorOption = None,
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Who of the enrolled people is it?"""
    from rich.console import Console

    from fedra.faces.recognition.gallery import Gallery

    people = Gallery.open(gallery, model=model, detector=detector, device=device, create=False, trust=trust)
    answers = []
    aside, console = Console(stderr=True), Console()
    for answer in people.identify_each(photographs, top, all_faces=all_faces):
        answers.append(answer)
        if not as_json:
            _tell_answer(console, aside, answer)
    if as_json:
        shown = [_shown_answer(answer) for answer in answers]
        print_json(photos=shown, enrolled=len(people), done=people.recognizer.manner)
    elif faces := [face for answer in answers for face in answer.faces]:
        tell(console, f"each photograph was {people.recognizer.manner}")
        _tell_certainty(console, faces[0], people)
    if any(answer.problem for answer in answers):
        raise typer.Exit(1)


gallery_app = typer.Typer(
    no_args_is_help=True, help="Look at a gallery, or remove people.", rich_markup_mode="markdown"
)
faces_app.add_typer(gallery_app, name="gallery")
GalleryFile = Annotated[Path, typer.Argument(help="File of templates.", metavar="GALLERY")]


@gallery_app.command("list", epilog="Example: `fedra faces gallery list people.gallery`")
def list_(gallery: GalleryFile) -> None:
    """Who is enrolled, and with how many photographs."""
    from rich.console import Console

    from fedra.faces.recognition.gallery_file import GalleryContent

    people = GalleryContent.read(gallery)
    console = Console()
    for name, count in people.counts.items():
        tell(console, f"{count:6}  {name}")
    model = people.about.model.path if people.about.model else "from Python"
    detector = people.about.detector or people.about.detector_fingerprint or "none"
    tell(console, f"{_counted(len(people), 'person', 'people')}; model {model}, detector {detector}")


@gallery_app.command(epilog="Example: `fedra faces gallery remove people.gallery Ada`")
def remove(
    gallery: GalleryFile, name: Annotated[str, typer.Argument(help="Name of the person to remove.", metavar="NAME")]
) -> None:
    """Remove a person, and say which other files are known to hold them still."""
    from rich.console import Console

    from fedra.faces.recognition.gallery_changes import remove_person

    found = remove_person(gallery, name)
    tell_all(Console(stderr=True), found.elsewhere)
    tell(Console(), f"'{name}' is removed; {_counted(found.left, 'person is', 'people are')} enrolled")


def _tell_answer(console: Console, aside: Console, answer: PhotoIdentification) -> None:
    if answer.problem is not None:
        tell(aside, f"fedra: {answer.problem}")
    elif not answer.faces:
        tell(aside, f"no face was found in '{answer.photo}'")
    for number, found in enumerate(answer.faces, 1):
        tell_all(aside, found.notes)
        which = f", face {number} of {len(answer.faces)}" if len(answer.faces) > 1 else ""
        left, top = (round(float(side)) for side in found.face.box[:2])
        width, height = found.face.size
        where = f", {width}x{height} pixels at {left}, {top}" if found.face.score is not None else ""
        sure = f", detection score {found.face.score:.2f}" if found.face.score is not None else ""
        tell(console, f"{answer.photo}{which}{where}{sure}")
        for rank, match in enumerate(found.matches, 1):
            tell(console, f"{rank:3}  {match.score:7.4f}  {match.name}")
        if found.decision is not None:
            tell(console, f"{described(found.decision, found.threshold)}: {found.name or 'no match'}")


def _tell_certainty(console: Console, found: IdentificationResult, people: Gallery) -> None:
    if found.decision is None:
        tell(console, UNDECIDED)
        return
    number = f"with {_counted(len(people), 'person', 'people')} enrolled"
    if found.false_accept is None:
        tell(console, f"{number}, too few errors were measured to say how often an unknown person is falsely accepted")
    else:
        tell(console, f"{number}, an unknown person is falsely accepted with a probability of {found.false_accept}")


def _shown_answer(answer: PhotoIdentification) -> dict[str, object]:
    return {
        "photo": str(answer.photo),
        "problem": answer.problem,
        "faces": [
            {
                "name": found.name,
                **judgment(found.decision, found.threshold, found.accepted),
                "false_accept": found.false_accept and vars(found.false_accept),
                "matches": [{"name": match.name, "score": match.score} for match in found.matches],
                **shown_face(found.face),
                "notes": found.notes,
            }
            for found in answer.faces
        ],
    }


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
