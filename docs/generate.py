"""Write the reference pages from the code: `python docs/generate.py`, or with `--check` only compare.

Pages: commands.md, configuration.md, parts.md, methods/, losses/ (with plots) and api/.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _generator import api, commands, configuration, losses, methods

DOCS = Path(__file__).parent
PLOTS = DOCS / "losses" / "plots"


def pages() -> dict[Path, str]:
    """The text of every generated page."""
    texts = {**configuration.pages(), **methods.pages(), **losses.pages(), **commands.pages(), **api.pages()}
    return {DOCS / path: text for path, text in texts.items()}


def strays(wanted: dict[Path, str]) -> list[Path]:
    """Generated pages and plots of names that no longer exist."""
    folders = ("methods", "losses", "losses/plots", "api")
    present = {path for folder in folders for path in (DOCS / folder).glob("*.*")}
    return sorted(present - wanted.keys() - losses.pictures(PLOTS))


def outdated() -> list[Path]:
    """The pages that differ from what the code says, and those that should not exist."""
    wanted = pages()
    changed = [p for p, text in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    drawn = sorted(losses.pictures(PLOTS))
    return [*changed, *(picture for picture in drawn if not picture.exists()), *strays(wanted)]


def write() -> None:
    """Write every page and draw every plot."""
    wanted = pages()
    for path in strays(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    losses.draw_pictures(PLOTS)


def main() -> None:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    if not parser.parse_args().check:
        write()
        return
    wrong = outdated()
    for path in wrong:
        print(f"{path.relative_to(DOCS.parent)} is out of date: run `make docs`", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
