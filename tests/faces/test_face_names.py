"""The public names of faces: there, documented, and taking strings for paths."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import fedra.faces
from fedra.faces import datasets, metrics

TYPES = {"Photo"}
"""Names for annotations, which have no docstring of their own."""
RECORDS = {"AlignmentOutcome", "Calibration", "PhotoIdentification", "PhotographSettings", "ErrorRate", "Removal",
           "TemplateThreshold", "FaceWarning"}  # fmt: skip
"""What is handed out and never called."""


def callables(name: str) -> Iterator[tuple[str, Any]]:
    """A function, or a class's constructor and public methods."""
    found = getattr(fedra.faces, name)
    if inspect.isclass(found):
        for method, content in vars(found).items():
            if method[0] != "_" and inspect.isfunction(getattr(content, "__func__", content)):
                yield f"{name}.{method}", getattr(found, method)
    elif callable(found):
        yield name, found


@pytest.mark.parametrize("name", sorted(set(fedra.faces.__all__) - TYPES))
def test_every_name_is_documented(name: str) -> None:
    text = inspect.getdoc(getattr(fedra.faces, name)) or ""
    assert text, name
    if name not in RECORDS:
        assert "Example:" in text, name


@pytest.mark.parametrize("name", ["FaceRecognizer", "Gallery", "align_face", "align_folder", "calibrate",
                                  "calibrate_people", "main_face", "open_detector", "people_in", "photographs",
                                  "photographs_in", "read_photo", "read_photograph", "write_photographs"])  # fmt: skip
def test_arguments_and_returns_are_documented(name: str) -> None:
    internal = {"embed_usable", "embed_crops", "embed_images", "save_decision"}
    for where, function in callables(name):
        if where.partition(".")[2] in internal:
            continue
        text = inspect.getdoc(function) or ""
        assert "Returns:" in text, where
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
