"""A table of named functions whose keyword-only parameters are the fields a configuration may set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

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

    def settings(
        self, name: str, given: Mapping[str, Any], convert: Callable[[Field, Any], Any] | None = None
    ) -> dict[str, Any]:
        """`given` checked against the fields of the function `name`: every name known, every value of its type.

        `convert` may turn a value into what its field wants before it is checked.
        """
        return checked(f"the {self.kind} '{name}'", fields(self[name]), given, convert)

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


def checked(
    owner: str,
    known: Mapping[str, Field],
    given: Mapping[str, Any],
    convert: Callable[[Field, Any], Any] | None = None,
) -> dict[str, Any]:
    """`given` with every name found among `known` and every value of its field's type; `owner` starts the sentence."""
    for name in given:
        if name not in known:
            hint = nearest(name, known) if known else "it has none"
            raise ConfigError(f"{owner} has no field '{name}': {hint}")
    for field in known.values():
        if field.required and field.name not in given:
            raise ConfigError(f"{owner} needs the field '{field.name}': give it a value")
    return {name: _value(owner, known[name], value, convert) for name, value in given.items()}


def _value(owner: str, field: Field, value: Any, convert: Callable[[Field, Any], Any] | None) -> Any:
    if convert is not None:
        value = convert(field, value)
    try:
        return TypeAdapter(field.annotation).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"{owner} cannot use {field.name} = {value!r}: {reason[:1].lower()}{reason[1:]}") from None
