"""The public names of faces: there, documented, and taking strings for paths."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import fedra.faces
from fedra.faces import datasets, metrics, synthetic

PACKAGES = (fedra.faces, datasets, metrics, synthetic)
TYPES = {"Photo"}
"""Names for annotations, which have no docstring of their own."""
NAMES = [
    (package, name)
    for package in PACKAGES
    for name in package.__all__
    if name not in TYPES and not inspect.ismodule(getattr(package, name))
]
RECORDS = {"AlignmentOutcome", "Calibration", "PhotoIdentification", "PhotoSettings", "ErrorRate", "Removal",
           "TemplateThreshold", "FaceWarning"}  # fmt: skip
"""What is handed out and never called."""


def functions(found: Any) -> Iterator[tuple[str, Any]]:
    """A function, or a class's public methods."""
    if not inspect.isclass(found):
        yield found.__name__, found
        return
    for method, content in vars(found).items():
        if method[0] != "_" and inspect.isfunction(getattr(content, "__func__", content)):
            yield f"{found.__name__}.{method}", getattr(found, method)


@pytest.mark.parametrize(("package", "name"), NAMES, ids=str)
def test_every_name_is_documented(package: Any, name: str) -> None:
    found = getattr(package, name)
    text = inspect.getdoc(found) or ""
    assert "Example:" in text, name
    if inspect.isclass(found) and not issubclass(found, Warning):
        assert "Args:" in text or "Attributes:" in text, name


@pytest.mark.parametrize(("package", "name"), NAMES, ids=str)
def test_arguments_and_returns_are_documented(package: Any, name: str) -> None:
    for where, function in functions(getattr(package, name)):
        text = inspect.getdoc(function) or ""
        assert "Returns:" in text, where
        assert "Example:" in text, where
        for argument in set(inspect.signature(function).parameters) - {"self", "cls"}:
            assert f"{argument}: " in text, f"{where} does not say what {argument} is"


@pytest.mark.parametrize("package", [fedra.faces, datasets, metrics], ids=lambda package: package.__name__)
def test_paths_may_be_strings(package: Any) -> None:
    for name in set(package.__all__) - RECORDS:
        found = getattr(package, name)
        for function in (found, getattr(found, "__init__", None)):
            for argument, how in getattr(function, "__annotations__", {}).items():
                if argument != "return" and inspect.isfunction(function):
                    assert str(how) not in ("Path", "Path | None"), f"{name} takes {argument} as a Path alone"


def test_names_come_without_torch() -> None:
    code = "import sys, fedra.faces; dir(fedra.faces); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
