"""The list of files that fedra wrote into a run's folder; no other file there is ever removed."""

from __future__ import annotations

from pathlib import Path

from fedra.file_reading import read_text_file
from fedra.writing import find_leftovers

LIST = ".fedra"
"""One relative path per line, written before the file itself. The list marks a folder as a run's."""


def claim(folder: Path, *names: str) -> None:
    """Add files to the list of a run's folder; do nothing in other folders."""
    known = claimed(folder)
    if known is None:
        return
    new = [name for name in names if name not in known]
    if new:
        with open(folder / LIST, "a", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in new))


def claimed(folder: Path) -> set[str] | None:
    """The files that fedra wrote into a run's folder; None if the folder is not a run's."""
    try:
        return set(read_text_file(folder / LIST).splitlines())
    except FileNotFoundError:
        return None


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that killed processes left of listed files; the caller holds the folder's lock."""
    known = claimed(folder) or set()
    for place in {folder / Path(name).parent for name in known}:
        if place.is_dir() and place.resolve().is_relative_to(folder.resolve()):
            names = {Path(name).name for name in known if folder / Path(name).parent == place}
            for path in find_leftovers(place, names):
                path.unlink(missing_ok=True)


def open_list(folder: Path) -> None:
    """Mark an empty folder as a run's."""
    (folder / LIST).touch()


def remove_claimed(folder: Path) -> None:
    """Remove the listed files and folders left empty, and clear the list."""
    for name in sorted(claimed(folder) or (), reverse=True):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            continue  # an edited list must not reach outside of its folder
        path.unlink(missing_ok=True)
        if path.parent != folder and path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()
    (folder / LIST).write_text("", encoding="utf-8")
