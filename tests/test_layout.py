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
    folders = Counter(path.parent for path in ROOT.rglob("*.py") if ".venv" not in str(path.relative_to(ROOT)))
    assert max(folders.values()) <= 40
