"""Names of the form `module:function`: what a configuration can import, and when that is allowed.

Importing a module runs its code, so it is allowed only inside `allow_imports()`. Commands that train a configuration
enter it; commands that read a run's folder, which may come from someone else, enter it only if the user passes `trust`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fedra.errors import ConfigError, nearest

_allowed: ContextVar[bool] = ContextVar("fedra.trust", default=False)

FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class ImportRefused(ConfigError):
    """A name would import a user's module without permission."""


@contextmanager
def allow_imports(allowed: bool = True) -> Iterator[None]:
    """Allow (or refuse) the import of `module:function` names within the block or the decorated function."""
    before = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(before)


def is_import(name: str) -> bool:
    """Return whether a name refers to a function in a user's module."""
    return ":" in name


def import_error(names: Sequence[str], where: str = "the configuration") -> ImportRefused:
    """Return the error that names what would be imported."""
    modules = ", ".join(f"'{name}'" for name in dict.fromkeys(names))
    return ImportRefused(
        f"{where} names {modules}, and importing runs that code: allow it with --trust (trust=True in Python) if "
        "you trust it"
    )


def import_function(kind: str, path: str) -> Callable[..., Any]:
    """Import the function `module:function` from PYTHONPATH, an installed package or the current folder."""
    owner = f"the {kind} '{path}'"
    if not FORM.fullmatch(path):
        raise ConfigError(
            f"{owner} cannot be imported: its name must have the form module:function, such as mine:build"
        )
    if not _allowed.get():
        raise import_error([path])
    module, _, name = path.partition(":")
    found = _import_module(owner, module)
    for step in name.split("."):
        if not hasattr(found, step):
            file = getattr(sys.modules[module], "__file__", None) or "built in"
            known = [word for word, value in vars(found).items() if callable(value) and not word.startswith("_")]
            hint = nearest(step, known) if known else "it defines no function"
            raise ConfigError(f"{owner} cannot be imported: the module '{module}' ({file}) has no '{step}': {hint}")
        found = getattr(found, step)
    if not callable(found):
        raise ConfigError(f"{owner} must be a function, got a {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _import_module(owner: str, module: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        # Appended, so a file here never shadows an installed module. Not removed, because worker processes inherit the
        # path and the module may import its neighbors later.
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{owner} cannot be imported ({describe_exception(error)}): install its requirements"
            ) from error
        raise ConfigError(
            f"{owner} cannot be imported: the module '{error.name}' must be in the current folder ({here}) or on "
            "PYTHONPATH: run from the folder that contains it, or add that folder to PYTHONPATH"
        ) from None
    except Exception as error:  # a user's module may fail in any way
        raise ConfigError(f"{owner} cannot be imported ({describe_exception(error)}): fix the module") from error


def describe_exception(error: BaseException) -> str:
    """Describe an exception of a user's code: its type, its message, and the line that raised it."""
    message = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")
    if isinstance(error, SyntaxError):
        return message
    trace, location = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and os.path.dirname(__file__) not in file:
            location = f", {os.path.basename(file)} line {trace.tb_lineno}"
        trace = trace.tb_next
    return message + location
