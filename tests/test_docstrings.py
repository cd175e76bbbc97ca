"""Every public name has a docstring with a summary, its arguments, what it returns, and an example."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

PACKAGES = (
    "algorithms",
    "parts",
    "losses",
    "models",
    "data",
    "faces",
    "evaluation",
    "analysis",
    "privacy.audit",
    "callbacks",
    "dashboard",
)
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples?):$", re.MULTILINE)
DESCRIBED = re.compile(r"^    \*{0,2}(\w+)(?: \([^)]*\))?:", re.MULTILINE)


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public class and function, once, under the shortest path that users write."""
    seen: set[int] = set()
    for package in ("fedra", *(f"fedra.{name}" for name in PACKAGES)):
        module = importlib.import_module(package)
        for name in module.__all__:
            item = getattr(module, name)
            if (inspect.isclass(item) or inspect.isfunction(item)) and id(item) not in seen:
                seen.add(id(item))
                yield f"{package}.{name}", item


def sections(item: Any) -> dict[str, str]:
    """The docstring of `item` itself by section; the text before the first section has the title ""."""
    first, *rest = SECTION.split(inspect.cleandoc(item.__doc__ or ""))
    return {"": first, **dict(zip(rest[::2], rest[1::2], strict=True))}


def argument_names(item: Any) -> set[str]:
    """What a caller may pass: the parameters of a function, the fields of a dataclass, those of an `__init__`."""
    if inspect.isfunction(item):
        return written_parameters(item) - {"args", "settings"}
    if is_dataclass(item):
        return {field.name for field in fields(item) if field.init and not field.name.startswith("_")}
    if item.__init__ in (object.__init__, Exception.__init__) or getattr(item, "_is_protocol", False):
        return set()
    parameters = list(inspect.signature(item.__init__).parameters.values())[1:]
    return {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


def written_parameters(function: Any) -> set[str]:
    """The parameters in the function's own code: what it passes on as `settings` is documented where it goes."""
    code = inspect.unwrap(function).__code__
    count = code.co_argcount + code.co_kwonlyargcount
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return set(code.co_varnames[: count + stars])


def lacks(item: Any) -> list[str]:
    """What the docstring of a public name does not say."""
    found = sections(item)
    missing = [] if found[""].strip() else ["a summary"]
    documented = set(DESCRIBED.findall(found.get("Args", "") + found.get("Attributes", "")))
    missing += [f"the argument {name}" for name in sorted(argument_names(item) - documented)]
    if inspect.isfunction(item):
        missing += [f"the parameter {name} that it describes" for name in sorted(documented - written_parameters(item))]
        returned = inspect.signature(item).return_annotation
        nothing = returned in (None, "None", inspect.Signature.empty)
        if not nothing and not {"Returns", "Yields"} & found.keys():
            missing.append("Returns")
    if not {"Example", "Examples"} & found.keys():
        missing.append("Example")
    return missing


@pytest.mark.parametrize("item", [pytest.param(item, id=name) for name, item in public_names()])
def test_docstring_is_complete(item: Any) -> None:
    missing = lacks(item)
    assert not missing, f"{item.__module__}.{item.__qualname__} lacks {', '.join(missing)}"


def test_a_gap_is_noticed() -> None:
    def partial(known: int, unknown: int) -> int:
        """A summary.

        Args:
            known: A number.
            gone: A number that is no longer passed.
        """
        return known + unknown

    assert lacks(partial) == ["the argument unknown", "the parameter gone that it describes", "Returns", "Example"]
