"""A tree of photographs made a tree of aligned crops: resumable, and no file is ever lost or half written."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from rich.console import Console

from fedra.console import steps
from fedra.data.decoding import Bytes
from fedra.errors import ConfigError, DataError, nearest
from fedra.faces.photos.alignment import align_face
from fedra.faces.photos.detection import Detector, main_face
from fedra.faces.photos.known_points import KnownPoints
from fedra.faces.photos.landmarks import TEMPLATE_SIDE, Points, template
from fedra.faces.photos.photo_files import photographs_in, read_photograph
from fedra.writing import write_atomically

Format = Literal["jpg", "png"]
SKIPPED = "skipped.csv"
HEADING = ("photograph", "reason")
"""The first line of skipped.csv, by which our own file is known."""
QUALITY = 95


@dataclass(frozen=True)
class AlignmentOutcome:
    """How many crops were made, how many were there before, and why photographs were skipped, by their paths."""

    made: int
    there: int
    skipped: dict[str, str]


def check_format(name: str) -> Format:
    """The name of a format that crops can be written in."""
    formats: dict[str, Format] = {known: known for known in get_args(Format)}
    if name not in formats:
        raise ConfigError(f"crops cannot be written as '{name}': {nearest(name, formats)}")
    return formats[name]


class _Skip(Exception):
    """A photograph of which no crop is made, and why."""


def align_folder(
    source: Path | str,
    target: Path | str,
    finder: Detector | KnownPoints,
    *,
    size: int = TEMPLATE_SIDE,
    format: Format = "jpg",
    force: bool = False,
    console: Console | None = None,
) -> AlignmentOutcome:
    """Align the main face of every photograph under `source` into the same place under `target`.

    A crop carries a mark of its photograph, detector and size: one that is there already is not made again, and any
    other file in its place stays unless `force`. Photographs without a crop are listed in target/skipped.csv.

    Args:
        source: A folder of photographs, at any depth.
        target: The folder for the crops, made if needed; neither folder may hold the other.
        finder: A detector, or the known points of the photographs.
        size: Side of the crops in pixels.
        format: "jpg" of quality 95, or "png".
        force: Replace files in the places of crops.
        console: Where to show progress, if anywhere.

    Returns:
        How many crops were made and were there before, and the reason for each photograph that was skipped.

    Example:
        >>> align_folder("photos", "crops", open_detector("yunet"), size=112)
        AlignmentOutcome(made=12, there=0, skipped={})
    """
    source, target = Path(source), Path(target)
    _check_apart(source, target)
    _check_skipped(target / SKIPPED)
    template(size)  # refuses a senseless size before any work
    photographs = photographs_in(source)
    if not photographs:
        raise DataError(f"there are no photographs under '{source}': check the path")
    made, there, skipped = 0, 0, dict[str, str]()
    owners: dict[Path, Path] = {}
    target.mkdir(parents=True, exist_ok=True)
    try:
        with steps(console, f"aligning {source}", len(photographs)) as done:
            for photograph in photographs:
                place = photograph.relative_to(source)
                crop = (target / place).with_suffix(f".{format}")
                try:
                    if owners.setdefault(crop, place) != place:
                        raise _Skip(f"'{owners[crop]}' has the same name but for its ending: rename one of them")
                    fresh = _align(photograph, place, crop, finder, size, force)
                    made, there = made + fresh, there + (not fresh)
                except _Skip as reason:
                    skipped[str(place)] = str(reason)
                done(1)
    finally:
        _write_skipped(target / SKIPPED, skipped)
    return AlignmentOutcome(made, there, skipped)


def _check_apart(source: Path, target: Path) -> None:
    """Neither folder may hold the other: crops would be taken for photographs, or the other way round."""
    one, other = source.resolve(), target.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise ConfigError(f"the crops cannot go to '{target}', which overlaps '{source}': give a folder of their own")
    if other.exists() and not other.is_dir():
        raise ConfigError(f"'{target}' is a file: give a folder for the crops")


def _check_skipped(path: Path) -> None:
    """The list of skipped photographs is replaced or removed at the end: it must be one of ours."""
    if not path.is_symlink() and not path.exists():
        return
    wanted = ",".join(HEADING).encode()
    try:
        with path.open("rb") as file:
            ours = file.readline(len(wanted) + 2).rstrip(b"\r\n") == wanted
    except OSError:
        ours = False
    if not ours:
        raise ConfigError(f"'{path}' is no list of skipped photographs, which goes there: move it away")


def _align(photograph: Path, place: Path, crop: Path, finder: Detector | KnownPoints, size: int, force: bool) -> bool:
    """Make one crop; False if it is there already."""
    try:
        mark = _mark(photograph.read_bytes(), place, finder, size)
        if crop.exists() and not force:
            if _mark_of(crop) == mark:
                return False
            raise _Skip(
                f"'{crop}' is there and is not its crop with these points and size: it stays unless replacing is forced"
            )
        image = read_photograph(photograph)
        aligned = align_face(image, _points(finder, place, image), size)
    except OSError as error:
        raise _Skip(f"it cannot be read ({error.strerror})") from None
    except DataError as error:
        raise _Skip(str(error)) from None
    try:
        crop.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(crop, _encoded(aligned, crop.suffix, mark))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # none of the photographs to come would fare better
            raise
        raise _Skip(f"its crop '{crop}' cannot be written ({error.strerror})") from None
    return True


def _points(finder: Detector | KnownPoints, place: Path, image: Bytes) -> Points:
    if isinstance(finder, KnownPoints):
        return finder.of(place)
    face = main_face(finder(image), image.shape)
    if face is None:
        raise _Skip("no face was found")
    return face.landmarks


def _mark(content: bytes, place: Path, finder: Detector | KnownPoints, size: int) -> str:
    """What a crop is made of, as a comment in its file."""
    found = str(finder.of(place).tolist()) if isinstance(finder, KnownPoints) else finder.fingerprint
    about = f"{hashlib.sha256(content).hexdigest()} {found} {size}"
    return f"fedra align {hashlib.sha256(about.encode()).hexdigest()[:32]}"


def _mark_of(crop: Path) -> str | None:
    """The mark an image carries as its comment, or None."""
    from PIL import Image

    try:
        with Image.open(crop) as image:
            comment = image.info.get("comment")
    except (OSError, ValueError, SyntaxError):
        return None
    return comment.decode("ascii", "replace") if isinstance(comment, bytes) else comment


def _encoded(crop: Bytes, suffix: str, mark: str) -> bytes:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    file, picture = io.BytesIO(), Image.fromarray(crop)
    if suffix == ".png":
        notes = PngInfo()
        notes.add_text("comment", mark)
        picture.save(file, "png", pnginfo=notes)
    else:
        picture.save(file, "jpeg", quality=QUALITY, subsampling=0, comment=mark)
    return file.getvalue()


def _write_skipped(path: Path, skipped: dict[str, str]) -> None:
    if not skipped:
        path.unlink(missing_ok=True)
        return
    text = io.StringIO(newline="")
    csv.writer(text).writerows([HEADING, *skipped.items()])
    # A file's name may be no UTF-8: Python holds such bytes as lone surrogates, which cannot be encoded.
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"))
