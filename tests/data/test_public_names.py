"""Every public name of fedra.data and fedra.models says its arguments and has an example that runs."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import fedra.data
import fedra.models
from fedra.registry import Registry

NAMES = [
    (package, name)
    for package in (fedra.data, fedra.models)
    for name in package.__all__
    if not isinstance(getattr(package, name), Registry)
]


@pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda value: getattr(value, "__name__", value))
def test_documented_with_an_example_that_runs(
    package: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRA_DATA", str(tmp_path))
    for registry in (fedra.data.DATASETS, fedra.models.MODELS):
        monkeypatch.setattr(registry, "_functions", dict(registry._functions))
    entry = getattr(package, name)
    text = inspect.getdoc(entry) or ""
    if inspect.signature(entry).parameters:
        assert "Args:" in text
    home = inspect.getmodule(entry)
    assert home is not None
    (found,) = doctest.DocTestFinder(recurse=False).find(entry, name, globs=dict(vars(home)))
    assert found.examples, "it has no example"
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found)
    assert result.failed == 0
