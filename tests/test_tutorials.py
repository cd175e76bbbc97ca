"""Every tutorial runs from top to bottom in an empty folder, and prints what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
TUTORIALS = sorted(page for page in FOLDER.glob("*.md") if page.stem != "index")
SLOW = {"first-comparison", "new-algorithm", "face-recognizer", "federation", "privacy"}
BLOCK = re.compile(r"^```(\w+)( [^\n]*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
MARK = "=== block"


def tutorial_script(page: Path) -> tuple[str, list[str]]:
    """The shell script that a reader of a tutorial types, and the output that the page shows after each command."""
    lines, shown = ["set -e"], []
    for kind, attributes, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        title = TITLE.search(attributes)
        if title:
            lines += [f"cat > {title[1]} <<'END_OF_FILE'", text + "END_OF_FILE"]
        elif kind == "sh":
            lines += [f"echo '{MARK}'", text]
            shown.append("")
        elif kind == "text" and shown:
            shown[-1] += text
    return "\n".join(lines), shown


def masked(line: str) -> str:
    """A line without its numbers and its alignment: other machines round differently and take other times."""
    return re.sub(r"\d[\d,.]*( [kMG]?B)?", "#", re.sub(r"[\s━─]+", " ", line)).strip()


def tutorial_cases() -> list[object]:
    slow = {page: pytest.mark.slow for page in TUTORIALS if page.stem in SLOW}
    return [pytest.param(page, id=page.stem, marks=slow.get(page, ())) for page in TUTORIALS]


@pytest.mark.parametrize("page", tutorial_cases())
def test_tutorials_run_from_top_to_bottom_and_print_what_they_show(page: Path, tmp_path: Path) -> None:
    script, shown = tutorial_script(page)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr
    printed = found.stdout.split(f"{MARK}\n")[1:]
    assert len(printed) == len(shown)
    for expected, output in zip(shown, printed, strict=True):
        lines = iter([masked(line) for line in output.splitlines()])
        for line in expected.splitlines():
            assert masked(line) in lines, (
                f"{page.name} shows a line that is not printed (in this order): {line}\n{output}"
            )


def test_every_tutorial_is_listed() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert all(f"({page.name})" in index for page in TUTORIALS)
    assert len(TUTORIALS) >= 5
