"""The documentation site builds without a warning, works without a network, and has every public name."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from test_docstrings import PACKAGES

ROOT = Path(__file__).parent.parent
FETCHED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\s\">]+)", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_navigation_has_five_groups(site: Path) -> None:
    tabs = re.findall(r'class="md-tabs__link"[^>]*>(.*?)</a>', (site / "index.html").read_text("utf-8"), re.DOTALL)
    assert [tab.strip() for tab in tabs] == ["Get started", "Tutorials", "Guides", "Reference", "Results"]


def test_no_page_fetches_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    assert not {(page.name, url) for page in pages for url in FETCHED.findall(page.read_text("utf-8"))}


@pytest.mark.parametrize("package", ["fedra", *(f"fedra.{name}" for name in PACKAGES)])
def test_every_public_name_has_an_entry(site: Path, package: str) -> None:
    page = (site / "api" / f"{package.removeprefix('fedra.')}.html").read_text("utf-8")
    names = set(importlib.import_module(package).__all__) - (set(PACKAGES) if package == "fedra" else set())
    missing = {name for name in names if f'id="{package}.{name}"' not in page}
    assert not missing


def test_every_command_has_an_entry(site: Path) -> None:
    page = (site / "commands.html").read_text("utf-8")
    shown = subprocess.run(
        [sys.executable, "-m", "fedra.cli", "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    commands = re.findall(r"^│ ([a-z]+) ", shown, re.MULTILINE)
    assert {"run", "sweep", "eval"} <= set(commands)
    assert not {name for name in commands if f'id="fedra-{name}' not in page}
