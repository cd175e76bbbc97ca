"""A user's nn.Module as a body and a head, and back."""

from __future__ import annotations

from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from fedra.core.random import scoped_seed
from fedra.errors import ConfigError, nearest
from fedra.models.recognition_model import RecognitionModel, has_body_and_head


class NamedHead(RecognitionModel):
    """A user's module split at its head: `body` is the module with the identity in place of the head.

    Args:
        module: The network; it is copied, not changed.
        head: Dotted name of the layer that computes the logits.

    Example:
        >>> from torch import nn
        >>> split = NamedHead(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "1")
        >>> type(split.unwrap()).__name__, split.head
        ('Sequential', Linear(in_features=64, out_features=10, bias=True))
    """

    def __init__(self, module: nn.Module, head: str) -> None:
        whole = deepcopy(module)
        part = _find(whole, head)
        whole.set_submodule(head, nn.Identity())
        super().__init__(whole, part)
        self.name = head
        self.training = module.training
        _check_head_weights(self)

    def split_name(self, name: str) -> str:
        """Return the name in this module of a tensor of the user's module.

        Args:
            name: The name in the user's module.

        Returns:
            The name, which starts with `body.` or `head.`.
        """
        inside = name.removeprefix(f"{self.name}.")
        return f"body.{name}" if inside == name else f"head.{inside}"

    def unwrap(self) -> nn.Module:
        """Return a copy of the user's module with the current weights.

        Returns:
            A module of the original type, with the original parameter names.
        """
        whole = deepcopy(self.body)
        whole.set_submodule(self.name, deepcopy(self.head))
        return whole


def named_head(module: nn.Module, head: str = "head", *, example: Tensor | None = None) -> RecognitionModel:
    """Split any network into a body and a head.

    Args:
        module: The network, from a batch to logits; it is copied, not changed.
        head: Dotted name of the layer that computes the logits, such as "fc" or "classifier.6".
        example: A batch of inputs to check the split with; None (the default) leaves the check to the training.

    Returns:
        A module with `body` and `head`, whose `unwrap()` returns a module of the original type. A network that has a
        `body` and a `head` and no weights elsewhere is returned as it is.

    Example:
        >>> from torch import nn
        >>> named_head(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "1").head
        Linear(in_features=64, out_features=10, bias=True)
    """
    as_is = head == "head" and has_body_and_head(module)
    model = cast(RecognitionModel, module) if as_is else NamedHead(module, head)
    if example is not None:
        check(model, example)
    return model


def check(model: RecognitionModel, example: Tensor) -> None:
    """Raise an error if head(body(x)) is not the output of the whole model.

    It works on copies in evaluation mode, so no buffer and no random generator changes.

    Args:
        model: A model with `body` and `head`.
        example: A batch of inputs.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> check(named_head(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "1"), torch.rand(2, 8, 8))
    """
    features, logits, where = check_same_output(model, example)
    if features.ndim != 2 or logits.ndim != 2:
        raise ConfigError(
            f"features and logits of {where} must have shape (batch, size), got {tuple(features.shape)} and "
            f"{tuple(logits.shape)}: flatten before the head"
        )


def check_same_output(model: RecognitionModel, example: Tensor) -> tuple[Tensor, Tensor, str]:
    """Return features, logits and the head's name for messages; raise if the whole model computes something else."""
    whole = (model.unwrap() if isinstance(model, NamedHead) else deepcopy(model)).eval()
    split = deepcopy(model).eval()
    kind, name = type(whole).__name__, getattr(model, "name", "head")
    where = f"the head '{name}' of {kind}"
    expected = _run(whole, example, f"the model {kind}", "pass a batch that it accepts")
    features = _run(split.body, example, f"{kind} without its head '{name}'", "name the layer that it calls last")
    logits = _run(split.head, features, where, "name the layer that the model calls last")
    if logits.shape != expected.shape or not torch.allclose(logits, expected, rtol=1e-4, atol=1e-5):
        raise ConfigError(
            f"{where} must be the last layer that the model calls, but head(body(x)) differs from model(x): name the "
            "last layer, and remove what follows it"
        )
    return features, logits, where


def _run(module: nn.Module, inputs: Tensor, what: str, remedy: str) -> Tensor:
    shape = tuple(inputs.shape)
    try:
        with torch.no_grad(), scoped_seed(0):
            outputs = module(inputs)
    except Exception as error:  # the user's forward may raise anything
        raise ConfigError(f"{what} must run on inputs of shape {shape}, got an error ({error}): {remedy}") from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"{what} must return one tensor, got a {type(outputs).__name__}: {remedy}")
    return outputs


def _find(module: nn.Module, head: str) -> nn.Module:
    parts: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if not head or head not in parts:
        likely = {name for name, part in parts.items() if isinstance(part, nn.Linear)}
        names = {*dict(module.named_children()), *likely} - {""}
        hint = nearest(head, names) if names else "it has none, so put it after a body in an nn.Sequential"
        raise ConfigError(f"head must name a submodule of {type(module).__name__}, got '{head}': {hint}")
    return parts[head]


def _check_head_weights(model: NamedHead) -> None:
    if not list(model.head.parameters()):
        raise ConfigError(f"the head must have weights, got '{model.name}': name the layer that computes the logits")
    in_body = {id(parameter) for parameter in model.body.parameters()}
    if any(id(parameter) in in_body for parameter in model.head.parameters()):
        raise ConfigError(
            f"the head '{model.name}' of {type(model.body).__name__} must have weights of its own, got some that it "
            "shares with its body"
        )
