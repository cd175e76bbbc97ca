"""The names of `fedra`: all there, listed, and imported on first use."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedra
from fedra.core import capabilities

FUNCTIONS = {"run", "resume", "simulate", "evaluate", "export", "sweep", "compare"}
CLASSES = {"Experiment", "Algorithm", "LocalTraining", "RunResult"}
ERRORS = {"FedraError", "ConfigError", "DataError", "RunError", "RunFailed"}
PACKAGES = {"algorithms", "parts", "losses", "models", "data", "faces", "evaluation", "callbacks"}


def test_every_name_is_listed_and_found() -> None:
    wanted = FUNCTIONS | CLASSES | ERRORS | PACKAGES
    assert wanted <= set(fedra.__all__)
    assert wanted <= set(dir(fedra))
    everything: dict[str, object] = {}
    exec("from fedra import *", everything)
    assert wanted <= everything.keys()
    assert all(callable(getattr(fedra, name)) for name in FUNCTIONS)
    assert all(inspect.isclass(getattr(fedra, name)) for name in CLASSES | ERRORS)
    assert all(inspect.ismodule(getattr(fedra, name)) for name in PACKAGES)


def test_the_import_loads_almost_nothing() -> None:
    """Time differs between machines, what is loaded does not: torch, NumPy and typing would take most of it."""
    asked = "import sys; before = set(sys.modules); import fedra; print(*set(sys.modules) - before)"
    found = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in found.stdout.split()}
    assert loaded <= {"fedra", "__future__", "gc", "importlib", "warnings"}
    assert {name for name in found.stdout.split() if name.startswith("fedra")} == {"fedra", "fedra.lazy"}


def public_callables() -> Iterator[tuple[str, Any]]:
    for package in (fedra, *(getattr(fedra, name) for name in sorted(PACKAGES))):
        for name in package.__all__:
            found = getattr(package, name)
            if inspect.isfunction(found):
                yield name, found
            elif inspect.isclass(found):
                methods = [key for key, value in vars(found).items() if not key.startswith("_") and callable(value)]
                yield from ((f"{name}.{key}", getattr(found, key)) for key in methods)


def test_every_path_may_be_a_string() -> None:
    """Records have paths as fields; functions and methods take either."""
    alone = [
        (name, parameter.name)
        for name, function in public_callables()
        for parameter in inspect.signature(function).parameters.values()
        if "Path" in str(parameter.annotation) and "str" not in str(parameter.annotation)
    ]
    assert alone == []


def test_one_extra_joins_all_abilities() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    joined = re.fullmatch(r"fedra\[(.*)\]", *extras["all"])
    assert joined
    assert set(joined[1].split(",")) == extras.keys() - {"all", "dev", "docs"}


def test_a_wrong_argument_is_a_value_error_too() -> None:
    assert issubclass(fedra.ConfigError, ValueError)
    with pytest.raises(ValueError, match="rounds"):
        fedra.run({"rounds": 0})


@pytest.mark.parametrize(
    "name",
    [name for name, kind in capabilities.HOOKS.items() if "raise TypeError" in inspect.getsource(getattr(kind, name))],
)
def test_a_missing_method_is_asked_for_by_its_name(name: str) -> None:
    method = getattr(capabilities.HOOKS[name], name)
    with pytest.raises(TypeError, match=f"must define {name}$"):
        method(*[None] * len(inspect.signature(method).parameters))


@pytest.mark.parametrize("kind", dict.fromkeys(capabilities.HOOKS.values()), ids=lambda kind: kind.__name__)
def test_the_example_of_a_capability_defines_its_methods(kind: type) -> None:
    defined = set(re.findall(r"def (\w+)\(", inspect.getdoc(kind) or ""))
    assert defined & {name for name, home in capabilities.HOOKS.items() if home is kind}
    with_slots = {name for base in (*capabilities.HOOKS.values(), fedra.parts.Term) for name in vars(base)}
    for slot in (fedra.parts.GradientRule, fedra.parts.ServerRule, fedra.parts.Personalizer):
        with_slots |= set(vars(slot))
    assert defined <= with_slots


def test_the_package_runs_as_a_module() -> None:
    shown = subprocess.run([sys.executable, "-m", "fedra", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip().endswith(fedra.__version__)
