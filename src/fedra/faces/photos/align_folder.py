"""Align a folder of photos into a folder of crops: resumable, never overwrites other files or leaves partial ones."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import warnings
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
from fedra.faces.photos.photo_files import check_photo_file, list_photos, open_image, read_photo_file
from fedra.writing import write_atomically

Format = Literal["jpg", "png"]
SKIPPED = "skipped.csv"
HEADING = ("photograph", "reason")
"""The header of skipped.csv, which identifies a file written by fedra."""
QUALITY = 95


@dataclass(frozen=True)
class AlignmentOutcome:
    """Result of aligning a folder.

    Attributes:
        made: Number of crops written.
        there: Number of crops that were up to date.
        skipped: The reason for each photo without a crop, by path relative to the source folder.

    Example:
        >>> align_folder("photos", "crops", open_detector("yunet")).skipped
        {'group/broken.jpg': "the photo 'photos/group/broken.jpg' cannot be read (not an image): check the file"}
    """

    made: int
    there: int
    skipped: dict[str, str]


def check_format(name: str) -> Format:
    """Return the name of an output format, or raise."""
    formats: dict[str, Format] = {known: known for known in get_args(Format)}
    if name not in formats:
        raise ConfigError(f"format must be one of {', '.join(formats)}, got '{name}': {nearest(name, formats)}")
    return formats[name]


class _Skip(Exception):
    """Raised with the reason if a photo gets no crop."""


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
    """Align the main face of every photo under `source` to the same relative path under `target`.

    Each crop stores a hash of its photo, detector and size. A crop that is up to date is not written again, and any
    other file at its path is left unchanged unless `force` is set. Photos without a crop are listed in
    target/skipped.csv.

    Args:
        source: Folder of photos, at any depth.
        target: Folder for the crops, created if needed; neither folder may contain the other.
        finder: A detector, or the known points of the photos.
        size: Side of the crops in pixels.
        format: "jpg" (quality 95) or "png".
        force: Overwrite existing files.
        console: Console that shows progress; default: none.

    Returns:
        The number of crops that were written and that were up to date, and the reason for each photo that was skipped.

    Example:
        >>> align_folder("photos", "crops", open_detector("yunet"), size=112)
        AlignmentOutcome(made=12, there=0, skipped={})
    """
    source, target = Path(source), Path(target)
    _check_separate(source, target)
    _check_skipped(target / SKIPPED)
    template(size)  # raises for an invalid size before any work
    photographs = list_photos(source)
    if not photographs:
        raise DataError(f"the folder '{source}' contains no photos: check the path")
    made, up_to_date, skipped = 0, 0, dict[str, str]()
    owners: dict[Path, Path] = {}
    target.mkdir(parents=True, exist_ok=True)
    try:
        with steps(console, f"aligning {source}", len(photographs)) as done:
            for photograph in photographs:
                relative = photograph.relative_to(source)
                crop = (target / relative).with_suffix(f".{format}")
                try:
                    if owners.setdefault(crop, relative) != relative:
                        raise _Skip(f"'{owners[crop]}' has the same name except for its suffix: rename one of them")
                    written = _align(photograph, relative, crop, finder, size, force)
                    made, up_to_date = made + written, up_to_date + (not written)
                except _Skip as reason:
                    skipped[str(relative)] = str(reason)
                done(1)
    finally:
        _write_skipped(target / SKIPPED, skipped)
    return AlignmentOutcome(made, up_to_date, skipped)


def _check_separate(source: Path, target: Path) -> None:
    """Raise if one folder contains the other: crops would be read as photos, or photos overwritten by crops."""
    source_path, target_path = source.resolve(), target.resolve()
    if source_path.is_relative_to(target_path) or target_path.is_relative_to(source_path):
        raise ConfigError(
            f"the target folder must not overlap the source folder '{source}', got '{target}': give another folder"
        )
    if target_path.exists() and not target_path.is_dir():
        raise ConfigError(f"the target must be a folder, got the file '{target}'")


def _check_skipped(path: Path) -> None:
    """Raise if the list of skipped photos, which is replaced or removed, was not written by fedra."""
    if not path.is_symlink() and not path.exists():
        return
    header = ",".join(HEADING).encode()
    try:
        with path.open("rb") as file:
            is_own = file.readline(len(header) + 2).rstrip(b"\r\n") == header
    except OSError:
        is_own = False
    if not is_own:
        raise ConfigError(f"'{path}' must be a list of skipped photos written by fedra, got another file: move it")


def _align(
    photograph: Path, relative: Path, crop: Path, finder: Detector | KnownPoints, size: int, force: bool
) -> bool:
    """Write one crop; return False if it is up to date."""
    try:
        check_photo_file(photograph)
        mark = _make_mark(photograph.read_bytes(), relative, finder, size)
        if crop.exists() and not force:
            if _read_mark(crop) == mark:
                return False
            raise _Skip(
                f"'{crop}' exists and is not the crop of this photo with these points and size: delete it, or "
                "overwrite it (--force, force=True in Python)"
            )
        image = read_photo_file(photograph)
        aligned = align_face(image, _find_points(finder, relative, image), size)
    except OSError as error:
        raise _Skip(f"it cannot be read ({error.strerror})") from None
    except DataError as error:
        raise _Skip(str(error)) from None
    try:
        crop.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(crop, _encode(aligned, crop.suffix, mark))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # all further photos would fail too
            raise
        raise _Skip(f"its crop '{crop}' cannot be written ({error.strerror})") from None
    return True


def _find_points(finder: Detector | KnownPoints, relative: Path, image: Bytes) -> Points:
    if isinstance(finder, KnownPoints):
        return finder.of(relative)
    face = main_face(finder(image), image.shape)
    if face is None:
        raise _Skip("no face was found")
    return face.landmarks


def _make_mark(content: bytes, relative: Path, finder: Detector | KnownPoints, size: int) -> str:
    """Return the comment stored in a crop: a hash of its photo, points or detector, and size."""
    found = str(finder.of(relative).tolist()) if isinstance(finder, KnownPoints) else finder.fingerprint
    about = f"{hashlib.sha256(content).hexdigest()} {found} {size}"
    return f"fedra align {hashlib.sha256(about.encode()).hexdigest()[:32]}"


def _read_mark(crop: Path) -> str | None:
    """Return the comment stored in an image, or None."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images
            check_photo_file(crop)
            with open_image(crop) as image:
                comment = image.info.get("comment")
    except (OSError, ValueError, SyntaxError, DataError, Image.DecompressionBombError):
        return None
    return comment.decode("ascii", "replace") if isinstance(comment, bytes) else comment


def _encode(crop: Bytes, suffix: str, mark: str) -> bytes:
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
    # A file name may not be UTF-8: Python represents such bytes as lone surrogates, which cannot be encoded.
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"))
