"""A table of named functions whose keyword-only parameters are the fields a configuration may set."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import Field as Bound
from pydantic import TypeAdapter, ValidationError

from fedra.errors import ConfigError, nearest

Strength = Annotated[float, Bound(ge=0, allow_inf_nan=False)]
"""How strongly a part acts: a finite number, zero or above."""

Positive = Annotated[float, Bound(gt=0, allow_inf_nan=False)]
"""A finite number above zero."""

Share = Annotated[float, Bound(ge=0, lt=1)]
"""A memory of the past, such as momentum: from zero to below one."""

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
    """Named functions of one kind ("dataset", "model", ...); `@registry.add("name")` puts one in.

    `homes` are modules whose import registers more: they are imported when a name is missing or all names are asked
    for, so that what is known never depends on what happens to be imported.
    """

    def __init__(self, kind: str, homes: Sequence[str] = ()) -> None:
        self.kind = kind
        self._functions: dict[str, Callable[..., Any]] = {}
        self._homes = list(homes)

    def _load(self) -> None:
        while self._homes:
            importlib.import_module(self._homes.pop())

    def add(self, name: str) -> Callable[[F], F]:
        def put(function: F) -> F:
            if name in self._functions:
                raise ValueError(f"the {self.kind} '{name}' is registered twice")
            self._functions[name] = function
            return function

        return put

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self:
            raise ConfigError(f"there is no {self.kind} '{name}': {nearest(name, self._functions)}")
        return self._functions[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._functions:
            self._load()
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._functions))

    def __len__(self) -> int:
        self._load()
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
    return checked_value(owner, field, value)


def checked_value(owner: str, field: Field, value: Any) -> Any:
    """`value` as its field's type has it, or a sentence that begins with `owner`."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if inspect.isclass(kind)]
    objects = tuple(kind for kind in kinds if is_dataclass(kind))
    if objects:
        if isinstance(value, objects) or (value is None and type(None) in kinds):
            return value
        names = " or ".join(kind.__name__ for kind in objects)
        raise ConfigError(f"{owner} cannot use {field.name} = {value!r}: it must be a {names}")
    try:
        return TypeAdapter(field.annotation).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"{owner} cannot use {field.name} = {value!r}: {reason[:1].lower()}{reason[1:]}") from None


def class_fields(kind: Any) -> dict[str, Field]:
    """The fields of a dataclass by name."""
    return _class_fields(kind)


@cache
def _class_fields(kind: type) -> dict[str, Field]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        item.name: Field(
            item.name, hints[item.name], inspect.Parameter.empty if item.default is MISSING else item.default
        )
        for item in dataclass_fields(kind)
    }
