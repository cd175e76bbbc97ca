"""A table of named functions whose keyword-only parameters are the fields a configuration may set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from fedra.errors import ConfigError, nearest

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Field:
    """One setting of a registered function: its name, its annotation and its default."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Registry(Mapping[str, Callable[..., Any]]):
    """Named functions of one kind ("dataset", "model", ...); `@registry.add("name")` puts one in."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._functions: dict[str, Callable[..., Any]] = {}

    def add(self, name: str) -> Callable[[F], F]:
        def put(function: F) -> F:
            if name in self._functions:
                raise ValueError(f"the {self.kind} '{name}' is registered twice")
            self._functions[name] = function
            return function

        return put

    def __getitem__(self, name: str) -> Callable[..., Any]:
        try:
            return self._functions[name]
        except KeyError:
            raise ConfigError(f"there is no {self.kind} '{name}': {nearest(name, self._functions)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._functions))

    def __len__(self) -> int:
        return len(self._functions)

    def summary(self, name: str) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self[name]) or "").partition("\n")[0]


def fields(function: Callable[..., Any]) -> dict[str, Field]:
    """The keyword-only parameters of `function` by name."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: Field(name, hints.get(name, Any), parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
