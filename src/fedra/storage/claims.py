"""The list of files that fedra wrote into a run's folder: nothing else there is ever removed."""

from __future__ import annotations

from pathlib import Path

LIST = ".fedra"
"""A name a line, relative to the folder. It is written before the file that it names, and marks the folder as a run."""


def claim(folder: Path, *names: str) -> None:
    """Note that fedra writes these files into the folder; a folder that is not a run's is left as it is."""
    known = claimed(folder)
    if known is None:
        return
    fresh = [name for name in names if name not in known]
    if fresh:
        with open(folder / LIST, "a", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in fresh))


def claimed(folder: Path) -> set[str] | None:
    """The files that fedra wrote into a run's folder; None where the folder is not a run's."""
    try:
        return set((folder / LIST).read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return None


def open_list(folder: Path) -> None:
    """Mark an empty folder as a run's."""
    (folder / LIST).touch()


def remove_claimed(folder: Path) -> None:
    """Remove what fedra wrote, and folders that are empty then; the list itself stays, empty."""
    for name in sorted(claimed(folder) or (), reverse=True):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            continue  # a list that somebody changed cannot reach outside of its folder
        path.unlink(missing_ok=True)
        if path.parent != folder and path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()
    (folder / LIST).write_text("", encoding="utf-8")
