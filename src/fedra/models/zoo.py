"""The table of models by name, and the one way to build one from a seed."""

from __future__ import annotations

from typing import Any, cast

from fedra.core.random import scoped_seed
from fedra.errors import ConfigError
from fedra.models.recognition_model import RecognitionModel, keeps_contract
from fedra.registry import Registry

MODELS = Registry("model")


def build(name: str, shape: tuple[int, ...], classes: int, *, seed: int, **settings: Any) -> RecognitionModel:
    """The registered model `name` for examples of `shape`, its weights drawn from `seed` alone.

    The caller's global generator is left as it was.
    """
    function = MODELS[name]
    checked = MODELS.settings(name, settings)
    if not shape or min(shape) < 1:
        raise ConfigError(f"the model '{name}' cannot read examples of shape {shape}: every size must be >= 1")
    if classes < 1:
        raise ConfigError(f"the model '{name}' was asked for {classes} classes: it needs at least one")
    with scoped_seed(seed):
        model = function(tuple(shape), classes, **checked)
    if not keeps_contract(model):
        raise ConfigError(
            f"the model '{name}' is a {type(model).__name__} whose weights are not all in 'body' and 'head': "
            "return fedra.models.RecognitionModel(body, head), or named_head(module, 'name of its head')"
        )
    return cast(RecognitionModel, model)
