"""Hooks of the site's build: the generated pages enter the navigation by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDERS = ("methods", "losses", "api")


def on_config(config: Any) -> Any:
    """List every page of a generated folder after the folder's index."""
    _expand(config.nav, Path(config.docs_dir))
    return config


def _expand(entries: list[Any], docs: Path) -> None:
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        for pages in entry.values():
            if not isinstance(pages, list):
                continue
            _expand(pages, docs)
            for folder in FOLDERS:
                if pages == [f"{folder}/index.md"]:
                    pages += [
                        f"{folder}/{page.name}" for page in sorted((docs / folder).glob("*.md")) if page.stem != "index"
                    ]
