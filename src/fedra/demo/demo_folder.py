"""The folder of a demonstration, which the next one replaces."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedra.errors import ConfigError

MARK = ".fedra-demo"
"""Written first: a folder without it was made by somebody else and is never replaced."""


def make_anew(folder: Path) -> None:
    """Make `folder` empty, in the place of an earlier demonstration's."""
    if folder.exists():
        if not (folder / MARK).is_file():
            raise ConfigError(
                f"the folder '{folder}' must be new or made by an earlier demo, and it is neither: "
                "choose another folder with --out"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
