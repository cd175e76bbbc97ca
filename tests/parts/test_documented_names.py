"""The examples of algorithms, parts, losses and analysis run, and every part explains its fields."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedra.algorithms
import fedra.losses
import fedra.parts
from fedra.analysis import angles, embeddings
from fedra.core.part import Part, known_parts
from fedra.registry import Registry

HOMES = ("fedra.algorithms.", "fedra.parts.")
PACKAGES = (fedra.algorithms, fedra.losses, fedra.parts)
NAMES = [
    (package, name)
    for package in PACKAGES
    for name in package.__all__
    if inspect.isclass(getattr(package, name)) or inspect.isfunction(getattr(package, name))
    if getattr(package, name).__module__.startswith(package.__name__)
]
NAMES += [(angles, "angles"), (embeddings, "Embeddings")]


def undocumented(entry: Any) -> set[str]:
    """The arguments that the docstring does not explain."""
    text = inspect.getdoc(entry) or ""
    return {name for name in inspect.signature(entry).parameters if not re.search(rf"^    {name}: \S", text, re.M)}


@pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda value: getattr(value, "__name__", value))
def test_the_example_runs(package: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedra.core.part._KNOWN", known_parts())  # an example may define a part
    monkeypatch.setattr(fedra.algorithms, "ENTRIES", dict(fedra.algorithms.ENTRIES))
    for registry in (value for value in vars(package).values() if isinstance(value, Registry)):
        monkeypatch.setattr(registry, "_functions", dict(registry._functions))
    entry = getattr(package, name)
    home = inspect.getmodule(entry)
    assert home is not None
    (found,) = doctest.DocTestFinder(recurse=False).find(entry, name, globs=dict(vars(home)))
    assert found.examples, "it has no example"
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found).failed == 0


@pytest.mark.parametrize("part", [p for p in known_parts().values() if p.__module__.startswith(HOMES)])
def test_every_part_explains_its_fields(part: type[Part]) -> None:
    assert not undocumented(part)
