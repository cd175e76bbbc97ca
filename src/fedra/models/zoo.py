"""The table of models by name, and the one way to build one from a seed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedra.core.random import scoped_seed
from fedra.errors import ConfigError
from fedra.models.find_head import split_at_head
from fedra.models.recognition_model import RecognitionModel, keeps_contract
from fedra.models.user_model import check, named_head
from fedra.registry import Registry
from fedra.trust import fault, importing, is_import

MODELS = Registry("model", imports=True)


def register(name: str, function: Callable[..., nn.Module]) -> None:
    """Make a network of your own known by name, to configurations and to `build`.

    Args:
        name: What `model.name` says; a name that is taken is refused.
        function: Takes the shape of one example and the number of classes, or no positional argument, and
            keyword-only fields; returns any `nn.Module` from a batch to logits (see `build`).

    Example:
        >>> from torch import nn
        >>> def tiny(shape, classes, *, hidden: int = 32):
        ...     return nn.Sequential(nn.Flatten(), nn.LazyLinear(hidden), nn.ReLU(), nn.Linear(hidden, classes))
        >>> register("tiny", tiny)
        >>> build("tiny", (1, 8, 8), 10, seed=0, hidden=16).head
        Linear(in_features=16, out_features=10, bias=True)
    """
    MODELS.add(name)(function)


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    seed: int = 0,
    head: str | None = None,
    trust: bool | None = None,
    **settings: Any,
) -> RecognitionModel:
    """The network `name` with weights drawn from `seed` alone; the caller's global generator is left as it was.

    Args:
        name: A name of `fedra list models`, a registered one, or `module:function`.
        shape: The shape of one example, such as (3, 32, 32).
        classes: How many classes the head tells apart.
        seed: Seeds the initial weights.
        head: The dotted name of the layer that makes the logits, for a network without `body` and `head`; without it
            the layer with weights whose output is the network's output is taken.
        trust: Whether `module:function` may be imported; by default only where a run was asked for.
        settings: The network's own fields.

    Returns:
        A module with a `body` that makes features and a `head` that makes logits. For a network of your own these are
        views of a copy of it, and `unwrap()` gives back a module of its type.

    Example:
        >>> build("mlp", (64,), 10, seed=0, hidden=[32]).head
        Linear(in_features=32, out_features=10, bias=True)
    """
    if trust is not None:
        with importing(trust):
            return build(name, shape, classes, seed=seed, head=head, **settings)
    checked = MODELS.settings(name, settings)
    if not shape or min(shape) < 1:
        raise ConfigError(f"the model '{name}' cannot read examples of shape {shape}: every size must be >= 1")
    if classes < 1:
        raise ConfigError(f"the model '{name}' was asked for {classes} classes: it needs at least one")
    with scoped_seed(seed):
        model = MODELS.call(name, {"shape": tuple(shape), "classes": classes}, checked)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"the model '{name}' returned a {type(model).__name__}: it must return a torch nn.Module")
        if keeps_contract(model) and not is_import(name):
            if head is not None:
                raise ConfigError(f"model.head = '{head}' is for your own networks: '{name}' has a head, leave it out")
            return cast(RecognitionModel, model)
        return _split(name, model, tuple(shape), classes, head)


def _split(name: str, model: nn.Module, shape: tuple[int, ...], classes: int, head: str | None) -> RecognitionModel:
    """A user's network as a body and a head, tried on a batch of noise."""
    example = torch.rand(2, *shape)
    if any(is_lazy(weight) for weight in model.parameters()):
        _materialize(name, model, example)
    found = cast(RecognitionModel, split_at_head(model, example) if head is None else named_head(model, head))
    check(found, example)
    with torch.no_grad():
        width = deepcopy(found).eval()(example).shape[1]
    if width != classes:
        raise ConfigError(
            f"the model '{name}' gives {width} logits, and the data have {classes} classes: make its last layer as "
            "wide as the argument `classes`"
        )
    return found


@torch.no_grad()
def _materialize(name: str, model: nn.Module, example: Tensor) -> None:
    """Lazy layers get their sizes and weights from the first batch, in evaluation mode: buffers do not move."""
    training = model.training
    try:
        model.eval()(example)
    except Exception as error:  # the user's forward may raise anything
        raise ConfigError(
            f"the model '{name}' cannot run on inputs of shape {tuple(example.shape)} ({fault(error)})"
        ) from error
    model.train(training)
