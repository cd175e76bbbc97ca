"""Write the reference pages from the code: `python docs/generate.py`, or with `--check` only compare.

Pages: configuration.md, parts.md, methods/, losses/ (with pictures), and the table of methods in README.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _generator import configuration, losses, methods

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
BEGIN, END = "<!-- methods: begin -->\n", "<!-- methods: end -->\n"


def pages() -> dict[Path, str]:
    """The text of every generated page."""
    texts = {**configuration.pages(), **methods.pages(), **losses.pages()}
    found = {DOCS / path: text for path, text in texts.items()}
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{README.name} lacks the lines {BEGIN.strip()} and {END.strip()}")
    found[README] = before + BEGIN + "\n" + methods.overview("docs/methods/") + "\n" + END + after
    return found


def strays(wanted: dict[Path, str]) -> list[Path]:
    """Pages and pictures of methods and losses that are no more."""
    present = {path for folder in ("methods", "losses") for path in (DOCS / folder).glob("*.*")}
    pictures = {path.with_suffix(".svg") for path in wanted if path.parent.name == "losses"}
    return sorted(present - wanted.keys() - pictures)


def outdated() -> list[Path]:
    """The pages whose text is not what the code says, and those that should not be there."""
    wanted = pages()
    changed = [p for p, text in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    drawn = (p.with_suffix(".svg") for p in wanted if p.parent.name == "losses" and p.stem != "index")
    return [*changed, *(picture for picture in drawn if not picture.exists()), *strays(wanted)]


def write() -> None:
    """Write every page and draw every picture."""
    wanted = pages()
    for path in strays(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    losses.draw_pictures(DOCS / "losses")


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
