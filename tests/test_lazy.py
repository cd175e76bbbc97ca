"""Modules are imported when they are needed, and names are known, taken and found whatever was imported before."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedra
from fedra.algorithms import ALGORITHMS
from fedra.core.part import known_parts
from fedra.core.part_homes import PART_HOMES
from fedra.data import DATASETS
from fedra.data.partition import PARTITIONS
from fedra.losses import LOSSES
from fedra.models import MODELS
from fedra.registry import Registry
from fedra.runners import RUNNERS

SOURCE = Path(fedra.__file__).parent
LAZY = [
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if "lazy_names(__name__, " in path.read_text(encoding="utf-8")
]
HOMES = [
    (ALGORITHMS, ["fedra.algorithms"]),
    (DATASETS, ["fedra.data", "fedra.faces.datasets"]),
    (LOSSES, ["fedra.losses"]),
    (MODELS, ["fedra.models"]),
    (PARTITIONS, ["fedra.data.partition"]),
    (RUNNERS, ["fedra.runners"]),
]


def import_all(package: str) -> Iterator[str]:
    """Import all modules of a package and yield their names."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
        yield module.name
        if module.ispkg:
            yield from import_all(module.name)


@pytest.mark.parametrize(("registry", "packages"), HOMES, ids=[registry.kind for registry, _ in HOMES])
def test_a_registry_lists_all_that_its_modules_register(registry: Registry, packages: list[str]) -> None:
    modules = {name for package in packages for name in import_all(package)}
    registered = {name: item.__module__ for name in registry if (item := registry[name]).__module__ in modules}
    assert registered == registry._homes


def test_every_recipe_is_registered() -> None:
    """A method has one file, and its recipe the name of the method."""
    files = {name.rpartition(".")[2] for name in import_all("fedra.algorithms")}
    assert files == {home.rpartition(".")[2] for home in ALGORITHMS._homes.values()}
    recipes = {name for name in fedra.algorithms.__all__ if name.islower() and name != "register"}
    assert recipes == {name.replace("-", "_") for name in ALGORITHMS._homes}


def test_all_built_in_parts_are_listed() -> None:
    modules = {name for package in ("fedra.core", "fedra.parts", "fedra.algorithms") for name in import_all(package)}
    found = {name: kind.__module__ for name, kind in known_parts().items() if kind.__module__ in modules}
    assert found == PART_HOMES


@pytest.mark.parametrize("package", LAZY)
def test_a_lazy_package_lists_what_it_imports(package: str) -> None:
    module = importlib.import_module(package)
    found = {name: home for home, names in module._HOMES.items() for name in names.split()}
    assert sum(len(names.split()) for names in module._HOMES.values()) == len(found)
    assert found.keys() <= set(module.__all__)
    for name, home in found.items():
        own = importlib.import_module(home)
        assert getattr(module, name) is getattr(own, name, own)


def in_a_process(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_run_imports_what_it_names() -> None:
    """Time differs between machines, what is loaded does not."""
    loaded = in_a_process(
        "import sys, fedra\n"
        "fedra.run({'rounds': 1, 'model': {'name': 'logistic'}, 'algorithm': {'name': 'fedprox', 'plus': ['clip']}})\n"
        "print(*sys.modules, sep='\\n')"
    )
    assert {"fedra.algorithms.fedprox", "fedra.parts.gradient", "fedra.models.dense"} <= set(loaded)
    assert not {name for name in loaded if name.partition(".")[0] in ("sklearn", "scipy", "matplotlib", "typer")}
    others = ("algorithms.fedsol", "parts.robust", "losses.fixed", "models.resnet", "data.sets.cifar", "runners.ray")
    optional = ("privacy.accounting", "experiment.private_run", "analysis.diagnostics", "faces.metrics.verification")
    assert not {f"fedra.{name}" for name in (*others, *optional)} & set(loaded)


def test_a_name_is_a_recipe_and_taken_before_and_after_its_module_is_imported() -> None:
    told = in_a_process(
        "import fedra.algorithms.fedprox\n"
        "from fedra import algorithms, data, models\n"
        "print(algorithms.fedprox(), algorithms.fedavg(), algorithms.fedsam())\n"
        "import fedra.algorithms.fedsam, fedra.algorithms.moon\n"
        "print(algorithms.fedsam(), algorithms.moon())\n"
        "for kind, name in ((algorithms, 'fedsol'), (data, 'mnist'), (models, 'vgg11')):\n"
        "    try: kind.register(name, lambda: None)\n"
        "    except ValueError as error: print(error)"
    )
    assert [line.count("Algorithm(") for line in told[:2]] == [3, 2]
    assert told[2:] == [
        "the name of a algorithm must be unique, got 'fedsol' twice",
        "the name of a data set must be unique, got 'mnist' twice",
        "the name of a model must be unique, got 'vgg11' twice",
    ]
