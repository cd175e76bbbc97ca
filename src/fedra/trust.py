"""Names of the form `module:function`: what a configuration may import, and when that is allowed.

Importing a module runs its code, so it happens only inside `importing()`: the commands that train open it, those that
read somebody's run folder open it when the user passes `trust`, and everything else is refused by default.
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
    """A name that would import a user's module where nobody has allowed it."""


@contextmanager
def importing(allowed: bool = True) -> Iterator[None]:
    """Allow (or refuse) the import of `module:function` names within the block or the decorated function."""
    before = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(before)


def is_import(name: str) -> bool:
    """Whether a name stands for a function in a module of the user's own."""
    return ":" in name


def refusal(names: Sequence[str], where: str = "the configuration") -> ImportRefused:
    """The error that says what would be imported."""
    modules = ", ".join(f"'{name}'" for name in dict.fromkeys(names))
    return ImportRefused(
        f"{where} names {modules}, which would import and run that code: pass --trust (trust=True in Python) if you "
        "trust it"
    )


def import_function(kind: str, path: str) -> Callable[..., Any]:
    """The function that `module:function` names, from PYTHONPATH, an installed package or the current folder."""
    owner = f"the {kind} '{path}'"
    if not FORM.fullmatch(path):
        raise ConfigError(f"{owner} cannot be imported: write it as module:function, such as mine:build")
    if not _allowed.get():
        raise refusal([path])
    module, _, name = path.partition(":")
    found = _import_module(owner, module)
    for step in name.split("."):
        if not hasattr(found, step):
            place = getattr(sys.modules[module], "__file__", None) or "built in"
            known = [word for word, value in vars(found).items() if callable(value) and not word.startswith("_")]
            hint = nearest(step, known) if known else "it defines no function"
            raise ConfigError(f"{owner} cannot be imported: the module '{module}' ({place}) has no '{step}': {hint}")
        found = getattr(found, step)
    if not callable(found):
        raise ConfigError(f"{owner} must be a function, got a {type(found).__name__}: name a function")
    return found  # type: ignore[no-any-return]


def _import_module(owner: str, module: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        # At the end, so that a file here never replaces an installed module. It stays: worker processes inherit the
        # path, and the module may import its neighbors later.
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{owner} cannot be imported ({fault(error)}): install what it needs") from error
        raise ConfigError(
            f"{owner} cannot be imported: there is no module '{error.name}' in the current folder ({here}) or on "
            "PYTHONPATH: start from the folder that holds it, or add that folder to PYTHONPATH"
        ) from None
    except Exception as error:  # a module of the user's own may fail in any way while it is imported
        raise ConfigError(f"{owner} cannot be imported ({fault(error)}): correct the module") from error


def fault(error: BaseException) -> str:
    """An error of a user's code in a few words: its type, its message, and the line of the file that raised it."""
    told = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")
    if isinstance(error, SyntaxError):
        return told
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and os.path.dirname(__file__) not in file:
            place = f", {os.path.basename(file)} line {trace.tb_lineno}"
        trace = trace.tb_next
    return told + place
