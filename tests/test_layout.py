"""One home for each thing: no name twice, no crowded folder."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "src" / "fedra").rglob("*.py"))


def test_no_file_name_twice() -> None:
    names = Counter(path.name for path in FILES if not path.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_public_class_name_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_no_folder_of_over_forty_files() -> None:
    """Documentation counts too; what running fedra or its tools leaves in a checkout does not."""
    shown = [
        path for path in ROOT.iterdir() if path.name in ("benchmarks", "configs", "docs", "examples", "src", "tests")
    ]
    files = (path for folder in shown for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    folders = Counter(path.parent.relative_to(ROOT) for path in files)
    assert {str(folder): count for folder, count in folders.items() if count > 40} == {}


def test_files_are_short() -> None:
    """Docstrings do not count: a public name explains every argument."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    long = {}
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented) and ast.get_docstring(node)]
        docstrings = sum((node.body[0].end_lineno or 0) - node.body[0].lineno + 1 for node in nodes)
        long[path.name] = len(text.splitlines()) - docstrings
    assert {name: lines for name, lines in long.items() if lines >= 400} == {}
