"""Import names on first use, so `import fedra` does not wait for torch, nor a run for what it does not use."""

from __future__ import annotations

import gc
import importlib
import sys

TYPE_CHECKING = False  # type checkers take it for true; importing typing would take most of the time of `import fedra`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names are defined in other modules.

    Args:
        package: The package's `__name__`.
        homes: Maps each module to the names that it defines, separated by spaces; a module that is public itself maps
            to its own name.

    Returns:
        The two functions, to assign to `__getattr__` and `__dir__`.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module = _import_module(modules[name])
        is_module = module.__name__.endswith(f".{name}") and not hasattr(module, name)
        found = module if is_module else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        present = vars(sys.modules[package])
        return sorted({*present["__all__"], *(name for name in present if name.startswith("__"))})

    class Package(type(sys)):  # type: ignore[misc]
        """A package in which a public name wins over the submodule of that name, whichever is imported first."""

        def __setattr__(self, name: str, value: Any) -> None:
            is_home = isinstance(value, type(sys)) and value.__name__ == modules.get(name)
            super().__setattr__(name, getattr(value, name, value) if is_home else value)

    sys.modules[package].__class__ = Package
    return find, names


def _import_module(module: str) -> Any:
    """Import with garbage collection disabled, because an import creates many objects and no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if was_enabled:
            gc.enable()
