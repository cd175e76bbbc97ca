"""Finds the folders of runs below a folder; links are not followed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedra.errors import ConfigError
from fedra.storage.claims import LIST

DEEPEST = 8
"""Number of levels of folders that are searched."""
RECORDS = frozenset(("metrics.jsonl", "summary.json", LIST))


@dataclass
class RunSearch:
    """Finds runs again and again; a folder whose time of change is the same is not listed again."""

    root: Path
    _listed: dict[str, tuple[int, bool, list[str]]] = field(default_factory=dict, repr=False)

    def find(self) -> list[str]:
        """Return the folders of all runs, relative to the root with slashes, in order; "." is the root itself."""
        found: list[str] = []
        seen: dict[str, tuple[int, bool, list[str]]] = {}
        waiting = [(".", 0)]
        while waiting:
            name, depth = waiting.pop()
            entry = self._list(name)
            if entry is None:
                continue
            seen[name] = entry
            _, is_run, folders = entry
            if is_run:
                found.append(name)
            elif depth < DEEPEST:
                waiting += [(folder if name == "." else f"{name}/{folder}", depth + 1) for folder in folders]
        self._listed = seen  # forgets folders that were removed
        return sorted(found)

    def _list(self, name: str) -> tuple[int, bool, list[str]] | None:
        """Return the time of change of a folder, whether it holds a run, and its subfolders."""
        path = os.path.join(self.root, name)
        try:
            changed = os.stat(path).st_mtime_ns
            known = self._listed.get(name)
            if known is not None and known[0] == changed:
                return known
            with os.scandir(path) as entries:
                names, folders = set(), []
                for entry in entries:
                    names.add(entry.name)
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
        except OSError:
            return None
        return changed, "config.toml" in names and not names.isdisjoint(RECORDS), sorted(folders)


def find_folders(paths: Sequence[Path | str]) -> dict[str, Path]:
    """Return the folders of runs with a name for each: runs as given, and all runs below other folders.

    Args:
        paths: Folders of runs, of sweeps, or of many runs.

    Returns:
        The folders by name: short names where they are unique, otherwise the paths as given.
    """
    if not paths:
        raise ConfigError("a report must have at least one run, got none: pass the folders of runs or sweeps")
    folders = list(dict.fromkeys(folder for path in paths for folder in _expand(Path(path))))
    names = _shorten([folder.as_posix() for folder in folders])
    return dict(zip(names, folders, strict=True))


def expand_runs(paths: Sequence[Path | str]) -> list[Path]:
    """Return the folders of runs: those given, and all below folders without a run, such as that of a sweep.

    Files are passed over, because `runs/sweep/*` lists tables and plots too.

    Args:
        paths: Folders of runs, of sweeps, or of many runs.

    Returns:
        The folders in order. One without any run stays in it, for the reader of runs to report.
    """
    found: list[Path] = []
    folders = [path for path in map(Path, paths) if not path.is_file()]
    for path in folders or map(Path, paths):
        below = [] if (path / "config.toml").exists() else RunSearch(path).find()
        found += [path / name for name in below] or [path]
    return found


def _expand(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        raise ConfigError(f"the folder of a run or a sweep must exist, got '{path}': check the path")
    if (path / "config.toml").exists():
        yield path
        return
    found = RunSearch(path).find()
    if not found:
        raise ConfigError(f"the folder must contain a run, got '{path}' without any: give the folder of --out")
    yield from (path / name for name in found)


def _shorten(paths: Sequence[str]) -> list[str]:
    """Drop the folders that all paths start with, but never the last component."""
    parts = [path.split("/") for path in paths]
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return ["/".join(each[shared:]) for each in parts]
