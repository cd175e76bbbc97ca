"""Every example runs, says what it found, and stays short."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(command: list[str], folder: Path, **environment: str) -> str:
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    lines = run([sys.executable, "-W", "error", str(path), "2"], tmp_path).splitlines()
    assert "%" in lines[0]
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
    if path.stem == "own_algorithm":  # its second line is the new algorithm at zero strength
        assert lines[0].split()[0] == lines[1].split()[0]


TASKS = ("simulate_own_model", "own_algorithm", "margin_loss", "evaluate_own_embedder", "faces_from_python")


@pytest.mark.parametrize("name", TASKS)
def test_what_users_come_for_takes_25_lines(name: str) -> None:
    lines = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip() and not line.strip().startswith("#")]) <= 25


def test_own_model_and_data_from_the_command_line(tmp_path: Path) -> None:
    """In a folder that is on no path, as the installed command runs."""
    for suffix in (".py", ".toml"):
        shutil.copy(ROOT / "examples" / f"own_model_and_data{suffix}", tmp_path)
    assert len((tmp_path / "own_model_and_data.py").read_text(encoding="utf-8").splitlines()) <= 25
    program = "from fedra.cli import main; main()"
    words = ["run", "own_model_and_data.toml", "rounds=2", "--out", "record"]
    assert "everything is in record" in run([sys.executable, "-P", "-c", program, *words], tmp_path)
    recorded = tomllib.loads((tmp_path / "record" / "config.toml").read_text(encoding="utf-8"))
    assert recorded["model"] == {"name": "own_model_and_data:net", "hidden": 32}


def test_a_configuration_can_name_it(tmp_path: Path) -> None:
    config = str(ROOT / "configs" / "quickstart.toml")
    words = ["rounds=1", "algorithm={ name = 'own_algorithm:fedpast', mu = 0.5 }"]
    command = [sys.executable, "-m", "fedra.cli", "run", config, *words, "--out", "record"]
    assert "everything is in record" in run(command, tmp_path, PYTHONPATH=str(ROOT / "examples"))
    assert (tmp_path / "record" / "summary.json").exists()


def test_the_faces_example_names_the_enrolled_and_no_one_else(tmp_path: Path) -> None:
    path = ROOT / "examples" / "faces_from_python.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 25
    lines = run([sys.executable, str(path)], tmp_path).splitlines()
    assert lines[0].endswith("one person: True")
    for line, name in zip(lines[1:], ("Ada", "Emmy", "Grace", "Sofya", "no match"), strict=True):
        assert f"]) {name} Match(" in line
