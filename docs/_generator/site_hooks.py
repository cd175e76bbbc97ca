"""Hooks of the site's build: generated pages are added to the navigation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FOLDERS = ("methods", "losses", "api")


def on_config(config: Any) -> Any:
    """List every page of a generated folder after the folder's index."""
    _expand(config.nav, Path(config.docs_dir))
    return config


def _expand(entries: list[Any], docs: Path) -> None:
    for entry in entries:
        for pages in entry.values() if isinstance(entry, dict) else ():
            if isinstance(pages, list):
                _expand(pages, docs)
                for folder in FOLDERS:
                    if pages == [f"{folder}/index.md"]:
                        pages += _pages(docs, folder)


def _pages(docs: Path, folder: str) -> list[dict[str, str]]:
    """Each page of a folder under its title, the name as users write it."""
    paths = (path for path in sorted((docs / folder).glob("*.md")) if path.stem != "index")
    titles = {path: re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) for path in paths}
    found = sorted((title[1], f"{folder}/{path.name}") for path, title in titles.items() if title)
    return [{title: page} for title, page in found]
