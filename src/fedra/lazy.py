"""Names of a package that are imported on first use, so that `import fedra` does not wait for torch."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names live in other modules.

    Args:
        package: The package's `__name__`.
        homes: The module of each name; a name that is a module itself maps to its own path.

    Returns:
        The two functions, to be assigned to `__getattr__` and `__dir__`.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        home = homes[name]
        module = _import_module(home)
        found = module if home == f"{package}.{name}" and not hasattr(module, name) else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        hidden = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*homes, *hidden})

    return find, names


def _import_module(module: str) -> Any:
    """Import without collecting garbage: an import makes many objects that stay, and no garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collecting:
            gc.enable()
