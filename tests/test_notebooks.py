"""The notebooks run from top to bottom, and store no output that could go stale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""
LAST_PRINTED = {
    "compare-methods": "%",
    "write-an-algorithm": "fedpast + scaffold",
    "faces-end-to-end": "person_00050",
}


def test_all_notebooks_are_known() -> None:
    assert {path.stem for path in NOTEBOOKS} == LAST_PRINTED.keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_stored(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    done = tmp_path / "done.ipynb"
    found = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path), str(done)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=500,
    )
    assert found.returncode == 0, found.stderr
    outputs = [
        each for cell in json.loads(done.read_text(encoding="utf-8"))["cells"] for each in cell.get("outputs", [])
    ]
    printed = "".join(
        "".join(each["text"]) for each in outputs if each["output_type"] == "stream" and each["name"] == "stdout"
    )
    assert LAST_PRINTED[path.stem] in printed
    assert any("image/png" in each.get("data", {}) for each in outputs), "it shows a plot"
