"""Registries of named functions, whose keyword-only parameters are the fields that a configuration can set."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import BeforeValidator, PydanticUserError, TypeAdapter, ValidationError
from pydantic import Field as Bound

from fedra.errors import ConfigError, FedraError, nearest, shorten, shorten_requirement
from fedra.trust import describe_exception, import_function, is_import

LARGEST_FLOAT = 1e28
"""Largest absolute value of a field: float32 can hold it, and a run with it may diverge but does not fail."""

SMALLEST_FLOAT = 1e-30
"""Smallest absolute value of a field that is not 0: its inverse is finite in float32."""

LARGEST_COUNT = 10**9
"""Largest integer of a field; seeds may be larger."""

LARGEST_SEED = 2**63 - 1
"""Largest seed; random generators take 64 bits."""

Strength = Annotated[float, Bound(ge=0, allow_inf_nan=False)]
"""The strength of a part: a finite number, at least 0."""

Positive = Annotated[float, Bound(gt=0, allow_inf_nan=False)]
"""A finite number greater than 0."""

Share = Annotated[float, Bound(ge=0, lt=1)]
"""A share of past values, such as momentum: at least 0 and less than 1."""

FileName = Annotated[str, BeforeValidator(lambda given: os.fspath(given) if isinstance(given, os.PathLike) else given)]
"""A path as a string or a `pathlib.Path`."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Field:
    """A field of a registered function: its name, annotation and default."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Registry(Mapping[str, Callable[..., Any]]):
    """Named functions of one kind ("data set", "model", ...); `@registry.add("name")` registers one.

    `homes` maps modules to the names that they register, separated by spaces; a function of that name, with
    underscores for hyphens, need not be registered. A module is imported when one of its names is looked up, but its
    names are always known and taken. With `imports`, a name of the form `module:function` refers to a user's function,
    if `fedra.trust` allows it.
    """

    def __init__(self, kind: str, homes: Mapping[str, str] | None = None, *, imports: bool = False) -> None:
        self.kind = kind
        self.imports = imports
        self._functions: dict[str, Callable[..., Any]] = {}
        self._homes = {name: module for module, names in (homes or {}).items() for name in names.split()}

    def add(self, name: str) -> Callable[[F], F]:
        def register(function: F) -> F:
            home = getattr(function, "__module__", None)
            if name in self._functions or self._homes.get(name, home) != home:
                raise ValueError(f"the name of a {self.kind} must be unique, got '{name}' twice")
            if is_import(name):
                raise ValueError(f"the name of a {self.kind} must not contain a colon, got '{name}'")
            self._functions[name] = function
            return function

        return register

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self:
            if self.imports and is_import(name):
                return self._import(name)
            raise ConfigError(f"there is no {self.kind} '{name}': {nearest(name, self)}")
        if name not in self._functions:
            module = importlib.import_module(self._homes[name])
            if name not in self._functions:
                self._functions[name] = getattr(module, name.replace("-", "_"))
        return self._functions[name]

    def _import(self, name: str) -> Callable[..., Any]:
        function = import_function(self.kind, name)
        try:
            fields(function)
        except Exception as error:  # a user's annotations may name missing types; built-in functions have none
            raise ConfigError(
                f"the arguments of the {self.kind} '{name}' must have annotations that can be resolved: "
                f"{describe_exception(error)}"
            ) from error
        return function

    def __contains__(self, name: object) -> bool:
        return name in self._functions or name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._functions, *self._homes}))

    def __len__(self) -> int:
        return len({*self._functions, *self._homes})

    def settings(
        self, name: str, given: Mapping[str, Any], convert: Callable[[Field, Any], Any] | None = None
    ) -> dict[str, Any]:
        """Validate `given` against the fields of the function `name`; `convert` is applied to each value first."""
        owner, function = f"the {self.kind} '{name}'", self[name]
        known, parameters = fields(function), inspect.signature(function).parameters
        if unmarked := [key for key in given if key in parameters and key not in known]:
            raise ConfigError(
                f"the field '{unmarked[0]}' of {owner} must be a keyword-only argument, got a positional one: put '*' "
                "before the arguments that a configuration sets"
            )
        return checked(owner, known, given, convert)

    def call(self, name: str, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
        """Call the function `name` with `arguments` by position (a user's function may take none) and `settings`.

        An exception in a user's function is reported with the line that raised it; others are not caught.
        """
        function, owner = self[name], f"the {self.kind} '{name}'"
        given = tuple(arguments.values()) if _takes(owner, function, list(arguments)) else ()
        if not is_import(name):
            return function(*given, **settings)
        try:
            return function(*given, **settings)
        except FedraError:
            raise
        except Exception as error:  # a user's function may fail in any way
            raise ConfigError(f"{owner} failed ({describe_exception(error)}): fix the function") from error

    def summary(self, name: str) -> str:
        """Return the first line of the function's docstring."""
        return (inspect.getdoc(self[name]) or "").partition("\n")[0]


def _takes(owner: str, function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    """Return whether `function` takes `arguments` by position; False if it takes none."""
    known = inspect.signature(function).parameters.values()
    positional = [it for it in known if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)]
    if any(it.kind is it.VAR_POSITIONAL for it in known) or len(positional) == len(arguments):
        return True
    if not positional:
        return False
    wanted = f"({', '.join(arguments)}) or nothing" if arguments else "nothing"
    shown = ", ".join(parameter.name for parameter in positional)
    raise ConfigError(
        f"{owner} must take {wanted} by position, got ({shown}): put '*' before the arguments that a configuration sets"
    )


def fields(function: Callable[..., Any]) -> dict[str, Field]:
    """Return the keyword-only parameters of `function`, or of a class's constructor, by name."""
    annotated: Any = function
    if isinstance(function, type) and not is_dataclass(function):  # annotations refer to the module that defines them
        annotated = vars(function).get("__init__", function)
    hints = get_type_hints(annotated, include_extras=True)
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
    """Validate the names and values of `given` against the fields `known`; `owner` names them in errors."""
    for name in given:
        if name not in known:
            hint = nearest(name, known) if known else "it has none"
            raise ConfigError(f"{owner} has no field '{name}': {hint}")
    for field in known.values():
        if field.required and field.name not in given:
            raise ConfigError(f"the field '{field.name}' of {owner} must be set")
    return {name: _value(owner, known[name], value, convert) for name, value in given.items()}


def _value(owner: str, field: Field, value: Any, convert: Callable[[Field, Any], Any] | None) -> Any:
    if convert is not None:
        value = convert(field, value)
    return validate_value(owner, field, value)


def validate_value(owner: str, field: Field, value: Any) -> Any:
    """Convert `value` to its field's type, or raise an error that names the field and its `owner`."""
    subject = f"the field '{field.name}' of {owner}"
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if inspect.isclass(kind)]
    objects = tuple(kind for kind in kinds if is_dataclass(kind))
    if objects:
        if isinstance(value, objects) or (value is None and type(None) in kinds):
            return value
        names = " or ".join(kind.__name__ for kind in objects)
        raise ConfigError(f"{subject} must be a {names}, got {value!r}")
    try:
        found = TypeAdapter(field.annotation).validate_python(value)
    except PydanticUserError:
        raise ConfigError(
            f"{subject} must have a type that a configuration can set, got {field.annotation}: leave it out"
        ) from None
    except ValidationError as error:
        requirement = shorten_requirement(error.errors()[0]["msg"])
        raise ConfigError(f"{subject} must be {requirement}, got {shorten(value)}") from None
    _check_numbers(subject, found, LARGEST_SEED if field.name == "seed" else LARGEST_COUNT)
    return found


def _check_numbers(subject: str, value: Any, most: int) -> None:
    """Raise on numbers that arithmetic in float32 or the memory of a machine cannot hold."""
    if isinstance(value, bool):
        return
    if isinstance(value, int) and abs(value) > most:
        raise ConfigError(f"{subject} must be at most {most}, got {shorten(value)}")
    if isinstance(value, float) and not (value == 0 or SMALLEST_FLOAT <= abs(value) <= LARGEST_FLOAT):
        raise ConfigError(
            f"{subject} must be 0, or between {SMALLEST_FLOAT:g} and {LARGEST_FLOAT:g} in absolute value, got {value!r}"
        )
    if isinstance(value, list | tuple):
        for item in value:
            _check_numbers(subject, item, most)


def class_fields(kind: Any) -> dict[str, Field]:
    """Return the fields of a dataclass by name."""
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
