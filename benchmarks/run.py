"""Run the benchmarks, each in a process of its own, and write their table into a Markdown file.

Rows of benchmarks that were not run stay in the table as long as the machine and the versions are the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import FOLDER, Row, machine

NAMES = (
    "engine",
    "stacked",
    "runners",
    "cluster",
    "methods",
    "scale",
    "clients",
    "partitions",
    "startup",
    "losses",
    "compile",
    "spread",
    "gallery",
    "photos",
    "privacy",
    "peers",
    "sites",
    "site_rounds",
    "protection",
)
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
HEADING = ["| benchmark | what | measured | target | | seconds |", "| --- | --- | ---: | ---: | --- | --- |"]


def run(name: str, quick: bool) -> list[Row] | None:
    """The rows of one benchmark, or None if it failed."""
    print(f"\n{name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "rows.json"
        command = [sys.executable, str(FOLDER / f"{name}.py"), "--json", str(kept), *(["--quick"] if quick else [])]
        if subprocess.run(command).returncode:
            return None
        return [Row(**row) for row in json.loads(kept.read_text())]


def merged(text: str, found: dict[str, list[Row]]) -> str:
    """The page with the new rows in its table."""
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"the Markdown file has no '{BEGIN}' and '{END}' to write the table between: add both lines")
    told = f"Measured on: {machine()}."
    lines = {name: [_line(name, row) for row in rows] for name, rows in found.items()}
    if told in old:
        for name in NAMES:
            lines.setdefault(name, [line for line in old.splitlines() if line.startswith(f"| {name} |")])
    ordered = [line for name in NAMES for line in lines.get(name, [])]
    return "\n".join([f"{before}{BEGIN}", told, "", *HEADING, *ordered, f"{END}{after}"])


def _line(name: str, row: Row) -> str:
    return "| " + " | ".join([name, *row.cells()]) + " |"


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="tiny sizes: checks that all run, measures nothing")
    options.add_argument("names", nargs="*", metavar="NAME", help=f"which to run, of {', '.join(NAMES)}; all if none")
    options.add_argument(
        "--markdown", type=Path, help="the page to write to; benchmarks/README.md, or none with --quick"
    )
    given = options.parse_args()
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        sys.exit(f"there is no benchmark '{unknown[0]}': choose among {', '.join(NAMES)}")
    results = {name: run(name, given.quick) for name in given.names or NAMES}
    failed = [name for name, rows in results.items() if rows is None]
    found = {name: rows for name, rows in results.items() if rows is not None}
    page = given.markdown or (None if given.quick else FOLDER / "README.md")
    if page is not None:
        page.write_text(merged(page.read_text(), found))
        print(f"\nthe table is in {page}")
    missed = [f"{name}: {row.what}" for name, rows in found.items() for row in rows if row.verdict == "missed"]
    print("\n".join(["", "targets missed:", *missed] if missed else ["", "no target was missed"]))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
