"""Commands for galleries of faces: enrol, identify, gallery list and gallery remove."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import app, tell
from fedra.cli.faces import (
    UNDECIDED,
    DetectorOption,
    Device,
    Input,
    Json,
    Network,
    judgement,
    model_source,
    opened,
    print_json,
    told,
)

if TYPE_CHECKING:
    from fedra.faces.recognition.gallery import Gallery
    from fedra.faces.recognition.recognizer import FaceRecognizer, ModelSource


@app.command(epilog="Examples: `fedra enrol people.gallery photos --model runs/faces` · "
             "`fedra enrol people.gallery me.jpg --name Ada`")  # fmt: skip
def enrol(
    gallery: Annotated[Path, typer.Argument(help="File of templates; made if it is not there.", metavar="GALLERY")],
    photographs: Annotated[
        Path, typer.Argument(help="A folder with a folder for each person; with --name, of one.", metavar="PHOTOS")
    ],
    model: Annotated[
        Path | None, typer.Option(help="Folder of a finished run, or a weight file.", show_default="the gallery's")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Whose photograph or photographs they are.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add photographs to who is enrolled already.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace who is enrolled already.")] = False,
    detector: DetectorOption = None,
    network: Network = None,
    input: Input = "112x112",
    device: Device = "cpu",
) -> None:
    """Put people into a gallery, which holds templates and never photographs."""
    from rich.console import Console

    from fedra.errors import ConfigError, DataError
    from fedra.faces.recognition.enrollment import enrol as put
    from fedra.faces.recognition.enrollment import people_in, person_at
    from fedra.faces.recognition.gallery import Again, Gallery

    if add and replace:
        raise ConfigError("--add and --replace exclude each other: give one of them")
    people = people_in(photographs) if name is None else person_at(photographs, name)
    if gallery.exists():
        source, recogniser, detector = _opened_of_gallery(Gallery.read(gallery), model, detector, device)
    elif model is None:
        raise ConfigError(f"there is no gallery '{gallery}' yet: say which model makes its templates with --model")
    else:
        source, recogniser = opened(model, network, input, detector, device)
    aside = Console(stderr=True)
    again: Again = "add" if add else "replace" if replace else "refuse"
    found = put(gallery, recogniser, source, people, detector=_absolute(detector), again=again, console=aside)
    if not found.people:
        raise DataError(f"nobody was enrolled: {'; '.join(found.problems[:5])}")
    for problem in found.problems:
        tell(aside, problem)
    single = sum(count == 1 for count in found.people.values())
    alone = f" ({single} of them by a single photograph)" if single else ""
    total = sum(found.people.values())
    who, of_what = _counted(len(found.people), "person", "people"), _counted(total, "photograph", "photographs")
    tell(Console(), f"{who} enrolled{alone} from {of_what}, each {recogniser.manner}")


@app.command(epilog="Example: `fedra identify who.jpg --gallery people.gallery --top 5`")
def identify(
    photograph: Annotated[Path, typer.Argument(help="A photograph.", metavar="PHOTO")],
    gallery: Annotated[Path, typer.Option(help="File of templates.", metavar="GALLERY")],
    top: Annotated[int, typer.Option(help="How many people to show.", min=1)] = 5,
    model: Annotated[Path | None, typer.Option(help="Where the model is now.", show_default="the gallery's")] = None,
    detector: DetectorOption = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Who of the enrolled people is it?"""
    from rich.console import Console

    from fedra.faces.recognition.gallery import Gallery
    from fedra.faces.recognition.thresholds import stored_decision

    people = Gallery.read(gallery)
    source, recogniser, _ = _opened_of_gallery(people, model, detector, device)
    matches = people.search(recogniser.embed_one(photograph), top)[0]
    decision = stored_decision(source, recogniser.fingerprint)
    best = matches[0]
    if as_json:
        listed = [{"name": match.name, "score": match.score} for match in matches]
        print_json(matches=listed, **judgement(decision, best.score), enrolled=len(people), done=recogniser.manner)
        return
    console = Console()
    tell(console, f"the photograph was {recogniser.manner}")
    for rank, match in enumerate(matches, 1):
        tell(console, f"{rank:3}  {match.score:7.4f}  {match.name}")
    if decision is None:
        tell(console, UNDECIDED)
        return
    verdict = f"it is {best.name}" if decision.accepts(best.score) else "it is nobody who is enrolled"
    tell(console, f"{told(decision)}: {verdict}")
    if len(people) > 1:
        chance = min(1.0, decision.far * len(people))
        tell(console, f"each of {len(people)} people may be mistaken: a stranger passes with up to {chance:.2g}")


gallery_app = typer.Typer(
    no_args_is_help=True, help="Look at a gallery, or take people out.", rich_markup_mode="markdown"
)
app.add_typer(gallery_app, name="gallery")
GalleryFile = Annotated[Path, typer.Argument(help="File of templates.", metavar="GALLERY")]


@gallery_app.command("list", epilog="Example: `fedra gallery list people.gallery`")
def list_(gallery: GalleryFile) -> None:
    """Who is enrolled, and with how many photographs."""
    from rich.console import Console

    from fedra.faces.recognition.gallery import Gallery

    people = Gallery.read(gallery)
    console = Console()
    for name, count in zip(people.names, people.photographs.tolist(), strict=True):
        tell(console, f"{count:6}  {name}")
    detector = people.about.detector or "none"
    tell(console, f"{len(people)} people; model {people.about.model.path}, detector {detector}")


@gallery_app.command(epilog="Example: `fedra gallery remove people.gallery Ada`")
def remove(gallery: GalleryFile, name: Annotated[str, typer.Argument(help="Who goes.", metavar="NAME")]) -> None:
    """Forget a person."""
    from rich.console import Console

    from fedra.faces.recognition.enrollment import clean_name, forget

    left = forget(gallery, name)
    tell(Console(), f"{clean_name(name)} is forgotten; {left} people are enrolled")


def _opened_of_gallery(
    people: Gallery, model: Path | None, detector: str | None, device: str
) -> tuple[ModelSource, FaceRecognizer, str | None]:
    """The gallery's own model and detector, unless others are given; another model's templates are refused."""
    from fedra.errors import ConfigError
    from fedra.faces.recognition.recognizer import open_recognizer

    about = people.about
    source = about.model if model is None else model_source(model, about.model.network, about.model.size)
    people.check_model(source.fingerprint())
    recogniser = open_recognizer(source, detector or about.detector, device=device)
    if detector is None and recogniser.detector and recogniser.detector.fingerprint != about.detector_fingerprint:
        raise ConfigError(f"the detector '{about.detector}' is not what it was at enrolment: give one with --detector")
    return source, recogniser, detector or about.detector


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _absolute(detector: str | None) -> str | None:
    """A detector as the gallery keeps it, to be found from any folder."""
    return str(Path(detector).expanduser().resolve()) if detector and Path(detector).exists() else detector
