"""The registry of models, and the function that builds one from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedra.core.random import scoped_seed
from fedra.errors import ConfigError
from fedra.machine import require_memory
from fedra.models.find_head import split_at_head
from fedra.models.recognition_model import RecognitionModel, has_body_and_head
from fedra.models.user_model import check, named_head
from fedra.registry import Registry
from fedra.trust import allow_imports, describe_exception, is_import

MODELS = Registry(
    "model",
    {
        "fedra.models.dense": "logistic mlp",
        "fedra.models.fedarc_nets": "fedarc-cnn fedarc-resnet18",
        "fedra.models.fedavg_cnn": "fedavg-cnn",
        "fedra.models.ghostfacenet": "ghostfacenet",
        "fedra.models.iresnet": "iresnet-tiny iresnet100 iresnet18 iresnet34 iresnet50",
        "fedra.models.mobilefacenet": "mbf mbf-large mobilefacenet mobilefacenet-tiny",
        "fedra.models.resnet": "resnet18 resnet34",
        "fedra.models.sphereface_net": "sphere20 sphere64",
        "fedra.models.swin": "swin swin-mini",
        "fedra.models.vgg": "vgg11",
        "fedra.models.vit": "sl-vit",
    },
    imports=True,
)
"""The functions that build networks, by the name that a configuration uses; call them through `build`."""


USUAL = 1024
"""Settings up to this number never make a network too large."""

FEW = 2**28
"""Products of input size and width up to this number never make a layer too large."""


def register(name: str, function: Callable[..., nn.Module]) -> None:
    """Register your own network by name, for configurations and for `build`.

    Args:
        name: The name for `model.name`. A name that is already registered is an error.
        function: Takes the shape of one example and the number of classes, or no positional argument, and keyword-only
            fields; returns any `nn.Module` from a batch to logits (see `build`).

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
    """Build a network by name, with random weights that depend on `seed` alone.

    The global random generator is left as it was.

    Args:
        name: A name of `fedra list models`, a registered one, or `module:function`.
        shape: Shape of one example, such as (3, 32, 32).
        classes: Number of classes.
        seed: Seed of the initial weights.
        head: Dotted name of the layer that computes the logits, for a network without `body` and `head`; None (the
            default) finds the layer whose output is the network's output.
        trust: Whether `module:function` may be imported; None (the default) allows it only inside a run.
        settings: The network's own fields.

    Returns:
        A module with a `body` that computes features and a `head` that computes logits. For your own network these are
        views of a copy, and `unwrap()` returns a module of its type.

    Example:
        >>> build("mlp", (64,), 10, seed=0, hidden=[32]).head
        Linear(in_features=32, out_features=10, bias=True)
    """
    if trust is not None:
        with allow_imports(trust):
            return build(name, shape, classes, seed=seed, head=head, **settings)
    checked = MODELS.settings(name, settings)
    if not shape or min(shape) < 1:
        raise ConfigError(f"shape of the model '{name}' must have sizes of at least 1, got {shape}")
    if classes < 1:
        raise ConfigError(f"classes of the model '{name}' must be at least 1, got {classes}")
    if not is_import(name):
        _require_memory(name, tuple(shape), classes, checked)
    with scoped_seed(seed):
        model = MODELS.call(name, {"shape": tuple(shape), "classes": classes}, checked)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"the model '{name}' must return a torch nn.Module, got a {type(model).__name__}")
        if has_body_and_head(model) and not is_import(name):
            if head is not None:
                raise ConfigError(
                    f"model.head must not be set for '{name}', which has a head, got '{head}': remove it (it is for "
                    "your own networks)"
                )
            return cast(RecognitionModel, model)
        return _split(name, model, tuple(shape), classes, head)


def _require_memory(name: str, shape: tuple[int, ...], classes: int, settings: dict[str, Any]) -> None:
    """Raise if the weights of a network would not fit into memory."""
    needed = describe_size(name, shape, classes, settings)
    if needed is None:
        return
    sizes = ", ".join(f"{key} = {value}" for key, value in settings.items() if not isinstance(value, str | bool))
    require_memory(f"the model '{name}'", needed, f"lower its settings ({sizes or 'none'}), or the size of its inputs")


def describe_size(name: str, shape: tuple[int, ...], classes: int, settings: dict[str, Any]) -> int | None:
    """Return the bytes of a network's weights without allocating them; None if they are few for certain.

    A user's own network (`module:function`) is not counted either.
    """
    if is_import(name):
        return None
    checked = MODELS.settings(name, settings)
    widest = max([classes, USUAL, *_numbers(checked.values())])
    if widest <= max(classes, USUAL) and math.prod(shape) * widest <= FEW:
        return None  # the first outline of a process takes seconds
    with torch.device("meta"):
        outline: nn.Module = MODELS.call(name, {"shape": shape, "classes": classes}, checked)
    return sum(int(value.numel() * value.element_size()) for value in outline.state_dict().values())


def _numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield value


def _split(name: str, model: nn.Module, shape: tuple[int, ...], classes: int, head: str | None) -> RecognitionModel:
    """Split a user's network into a body and a head, and check it on a random batch."""
    example = torch.rand(2, *shape)
    if any(is_lazy(weight) for weight in model.parameters()):
        _materialize(name, model, example)
    found = cast(RecognitionModel, split_at_head(model, example) if head is None else named_head(model, head))
    check(found, example)
    with torch.no_grad():
        width = deepcopy(found).eval()(example).shape[1]
    if width != classes:
        raise ConfigError(
            f"the model '{name}' must return {classes} logits (the number of classes), got {width}: make its last "
            "layer as wide as the argument `classes`"
        )
    return found


@torch.no_grad()
def _materialize(name: str, model: nn.Module, example: Tensor) -> None:
    """Give lazy layers their sizes and weights by one batch in evaluation mode, so buffers do not change."""
    training = model.training
    try:
        model.eval()(example)
    except Exception as error:  # the user's forward may raise anything
        raise ConfigError(
            f"the model '{name}' must run on inputs of shape {tuple(example.shape)}, got an error "
            f"({describe_exception(error)})"
        ) from error
    model.train(training)
