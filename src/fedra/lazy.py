"""Import names of a package on first use, so `import fedra` does not wait for torch."""

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
        homes: Maps each name to the module that defines it; a submodule maps to its own path.

    Returns:
        The two functions, to assign to `__getattr__` and `__dir__`.
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
    """Import with garbage collection disabled, because an import creates many objects and no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if was_enabled:
            gc.enable()
