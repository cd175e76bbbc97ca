"""The pages match the code, their links lead somewhere, and what they show runs."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from fedra.config import reading as configuration
from fedra.config.names import build_algorithm
from fedra.federation.federation_plan import FederationSection
from fedra.federation.local_data.data_schema import DataSchema

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)( [^\n]*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
RUN_ALL = """
import json, sys
for where, text in json.load(sys.stdin):
    try:
        exec(compile(text, where, "exec"), {"__name__": "__main__"})
    except Exception as error:
        sys.exit(f"{where}: {type(error).__name__}: {error}")
"""


def blocks(language: str) -> list[tuple[str, str]]:
    """All blocks of a language, each with its page; those of tutorials are run in sequence by test_tutorials."""
    found = []
    for page in PAGES:
        for kind, _, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind == language and page.parent.name != "tutorials":
                found.append((str(page.relative_to(ROOT)), text))
    return found


def heading_anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = re.findall(r"\{ #(\S+)", text) + re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | set(named)


def check_pages(root: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where no test has registered anything."""
    command = [sys.executable, str(root / "docs" / "generate.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_generated_pages_are_up_to_date() -> None:
    found = check_pages(ROOT)
    assert found.returncode == 0, found.stderr


def test_the_check_notices_an_edited_page_and_a_stray_one(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs" / "methods" / "fedprox.md"
    page.write_text(page.read_text(encoding="utf-8") + "An edit by hand.\n", encoding="utf-8")
    (tmp_path / "docs" / "losses" / "gone.md").write_text("A loss that does not exist.\n", encoding="utf-8")
    found = check_pages(tmp_path)
    assert found.returncode == 1
    assert {line.partition(" is out of date")[0] for line in found.stderr.splitlines()} >= {
        "docs/methods/fedprox.md",
        "docs/losses/gone.md",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(BLOCK.sub("", text)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in heading_anchors(target.read_text(encoding="utf-8")), f"{page.name} links to {link}"


def test_python_blocks_run(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(blocks("python")),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(("page", "text"), blocks("toml"), ids=lambda value: value if value.endswith(".md") else "")
def test_toml_blocks_can_be_read_and_built(page: str, text: str) -> None:
    table = tomllib.loads(text)
    if (rules := table.pop("federation", None)) is not None:
        FederationSection.model_validate({"name": "docs", "address": "docs:1", **rules})
    if isinstance(table.get("data"), dict) and table["data"].get("name") == "sites":
        DataSchema.model_validate({key: value for key, value in table["data"].items() if key != "name"})
    checked = configuration.read(table)
    assert build_algorithm(checked.algorithm).objective


def test_the_page_on_algorithms_shows_the_example() -> None:
    example = (ROOT / "examples" / "own_algorithm.py").read_text(encoding="utf-8")
    algorithm = example.partition("# --- the algorithm: begin\n")[2].partition("# --- the algorithm: end")[0].strip()
    assert len(algorithm.splitlines()) < 30
    assert algorithm in (ROOT / "docs" / "add-an-algorithm.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_front_pages_count_what_there_is(page: str) -> None:
    """The pages of methods and losses are generated from the code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    counted = {"methods": r"(\d+) federated (?:methods|algorithms)", "losses": r"(\d+) losses"}
    found = {kind: re.findall(pattern, text) for kind, pattern in counted.items()}
    there = {kind: str(len(list((ROOT / "docs" / kind).glob("*.md"))) - 1) for kind in counted}  # without the index
    assert found["methods"] == [there["methods"]]
    assert set(found["losses"]) <= {there["losses"]}


def test_the_first_program_prints_what_the_readme_shows(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    assert program
    found = subprocess.run(
        [sys.executable, "-c", f"import torch; torch.manual_seed(0)\n{program[1]}"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    shape = re.compile(r"RunResult\(Sequential, 20 rounds, accuracy (\d+)\.\d\d%\)")
    printed, shown = shape.fullmatch(found.stdout.strip()), shape.fullmatch(program[2])
    assert printed
    assert shown
    assert abs(int(printed[1]) - int(shown[1])) <= 3  # the weights that a network starts from differ


def test_pictures_are_small() -> None:
    sizes = [path.stat().st_size for path in (ROOT / "docs").rglob("*.svg")]
    assert max(sizes) < 100_000
    assert sum(sizes) < 2_000_000


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what other libraries import
@pytest.mark.parametrize("folder", ["benchmarks", "docs", "examples"])
def test_scripts_import_names_that_exist(folder: str) -> None:
    """Scripts that take minutes are run by people, not by tests; a renamed function must not wait for them."""
    missing = []
    for script in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedra":
                module = importlib.import_module(node.module or "")
                found = [name.name for name in node.names if not _has(module, name.name)]
                missing += [f"{script.relative_to(ROOT)}: {node.module}.{name}" for name in found]
    assert missing == []


def _has(module: ModuleType, name: str) -> bool:
    """Return whether a module has a name, or a package a module of that name."""
    is_package = hasattr(module, "__path__")
    return hasattr(module, name) or (is_package and importlib.util.find_spec(f"{module.__name__}.{name}") is not None)
