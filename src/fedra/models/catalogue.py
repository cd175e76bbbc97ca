"""The table of models by name, and the one way to build one from a seed."""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from fedra.core.random import scoped_seed
from fedra.errors import ConfigError, nearest
from fedra.models.recogniser import Recogniser, keeps_contract
from fedra.registry import Field, Registry, fields

MODELS = Registry("model")


def build(name: str, shape: tuple[int, ...], classes: int, *, seed: int, **settings: Any) -> Recogniser:
    """The registered model `name` for examples of `shape`, its weights drawn from `seed` alone.

    The caller's global generator is left as it was.
    """
    function = MODELS[name]
    checked = _checked(name, fields(function), settings)
    if not shape or min(shape) < 1:
        raise ConfigError(
            f"the model '{name}' cannot read examples of shape {shape}: every size must be >= 1"
        )
    if classes < 1:
        raise ConfigError(f"the model '{name}' was asked for {classes} classes: it needs at least one")
    with scoped_seed(seed):
        model = function(tuple(shape), classes, **checked)
    if not keeps_contract(model):
        raise ConfigError(
            f"the model '{name}' is a {type(model).__name__} whose weights are not all in 'body' and 'head': "
            "return fedra.models.Recogniser(body, head), or named_head(module, 'name of its head')"
        )
    return cast(Recogniser, model)


def _checked(name: str, known: dict[str, Field], settings: dict[str, Any]) -> dict[str, Any]:
    checked = {}
    for setting, value in settings.items():
        if setting not in known:
            hint = nearest(setting, known) if known else "it has none"
            raise ConfigError(f"the model '{name}' has no setting '{setting}': {hint}")
        try:
            checked[setting] = TypeAdapter(known[setting].annotation).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"the model '{name}' cannot use {setting} = {value!r}: {reason}") from None
    return checked
