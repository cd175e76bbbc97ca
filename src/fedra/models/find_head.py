"""Finding the head of a module that does not name one: the last layer it calls."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from fedra.core.random import scoped_seed
from fedra.errors import ConfigError
from fedra.models.recognition_model import RecognitionModel, has_body_and_head
from fedra.models.user_model import NamedHead, named_head


class HeadAlone(RecognitionModel):
    """A single layer, such as logistic regression: its inputs are the features."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(nn.Identity(), module)

    def unwrap(self) -> nn.Module:
        """Return the user's own layer."""
        return self.head


def split_at_head(module: nn.Module, example: Tensor) -> nn.Module:
    """Return `module` as a body and a head: unchanged if it has both, else split at the last layer that it calls.

    Args:
        module: Any module from a batch of inputs to logits (batch, classes).
        example: A batch of inputs.

    Returns:
        A module with `body` and `head`: the given one, or a copy.

    Example:
        >>> split_at_head(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4)).name
        '2'
    """
    if has_body_and_head(module):
        return module
    if not list(module.children()):
        return HeadAlone(module)
    batch = like_weights(module, example)
    return named_head(module, find_head(module, batch), example=batch)


def like_weights(module: nn.Module, example: Tensor) -> Tensor:
    """Return a batch of floating-point inputs in the type of the module's weights."""
    return example.to(next(module.parameters()).dtype) if example.is_floating_point() else example


def find_head(module: nn.Module, example: Tensor) -> str:
    """Return the dotted name of the layer whose output is the module's output."""
    whole, outputs = deepcopy(module).eval(), dict[str, object]()

    def record_output(name: str) -> None:
        layers[name].register_forward_hook(lambda _, __, output: outputs.__setitem__(name, output))

    layers = {
        name: layer for name, layer in whole.named_modules() if name and any(True for _ in layer.parameters(False))
    }
    for name in layers:
        record_output(name)
    kind = type(module).__name__
    try:
        with torch.no_grad(), scoped_seed(0):
            final = whole(example)
    except Exception as error:  # the user's forward may raise anything
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the model {kind} must run on the clients' inputs, {example.dtype} of shape {tuple(example.shape)}, got "
            f"an error ({reason})"
        ) from error
    found = [name for name, output in outputs.items() if output is final]
    if not found:
        raise ConfigError(
            f"the model {kind} must end with a layer that has weights, got an output that is not that of one layer: "
            "return that layer's output, or put all that computes the logits into one layer and name it with "
            "fedra.models.named_head(module, 'fc'), or by model.head in a configuration"
        )
    return found[-1]


def unwrap_model(module: nn.Module) -> nn.Module:
    """Return the user's own network if `module` is a view of one as a body and a head; else `module` itself."""
    return module.unwrap() if isinstance(module, NamedHead | HeadAlone) else module
