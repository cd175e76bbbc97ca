"""The output folder of a demo, which the next demo replaces."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedra.errors import ConfigError

MARKER = ".fedra-demo"
"""Written first; a folder without this file was not made by a demo and is never replaced."""


def create_demo_folder(folder: Path) -> None:
    """Create an empty `folder`, replacing that of an earlier demo."""
    if folder.exists():
        if not (folder / MARKER).is_file():
            raise ConfigError(
                f"the output folder must be new or made by an earlier demo, got '{folder}': "
                "choose another folder with --out"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
