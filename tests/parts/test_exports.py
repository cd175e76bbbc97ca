"""`fedra.parts` holds all that a new algorithm needs, each name once."""

from __future__ import annotations

import importlib
import pkgutil

import fedra.parts
from fedra.core import capabilities
from fedra.core.algorithm import SLOTS
from fedra.core.part import Part, known_parts


def test_every_name_is_there_once_and_sorted_out() -> None:
    assert len(set(fedra.parts.__all__)) == len(fedra.parts.__all__)
    assert all(hasattr(fedra.parts, name) for name in fedra.parts.__all__)


def test_every_shared_part_kind_and_capability_is_exported() -> None:
    wanted: set[type] = {kind for kind in known_parts().values() if kind.__module__.startswith("fedra.parts.")}
    wanted |= {*SLOTS.values(), *capabilities.HOOKS.values()}
    wanted |= {value for value in vars(capabilities).values() if isinstance(value, type) and value is not object}
    wanted = {kind for kind in wanted if kind.__module__.startswith("fedra.")}
    assert {kind.__name__ for kind in wanted} <= set(fedra.parts.__all__)


def test_a_part_used_by_one_algorithm_lives_in_its_file() -> None:
    for name, part in known_parts().items():
        if part.__module__.startswith("fedra.algorithms."):
            users = [
                module.name
                for module in pkgutil.iter_modules(importlib.import_module("fedra.algorithms").__path__)
                if getattr(importlib.import_module(f"fedra.algorithms.{module.name}"), part.__name__, None) is part
            ]
            assert users == [part.__module__.rpartition(".")[2]], name


def test_a_part_has_few_methods_of_its_own() -> None:
    """What goes beyond a slot is a capability."""
    public = [name for name in vars(Part) if not name.startswith("_") and callable(getattr(Part, name))]
    assert sorted(public) == ["check", "nested"]
