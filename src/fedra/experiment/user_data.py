"""People's own tensors and data sets, checked before anything is trained on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedra.core.batches import Examples
from fedra.core.model import Model
from fedra.errors import ConfigError

Pair = tuple[Tensor, Tensor]


@torch.no_grad()
def classes_of(model: Model, inputs: Tensor) -> int:
    """The number of classes: the width of the logits on some of the first client's inputs."""
    try:
        return model.output(model.weights(), model.ready(inputs)).logits.shape[1]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the model cannot read client 0's inputs, {inputs.dtype} of shape {tuple(inputs.shape[1:])} each "
            f"({reason}): give inputs that its body accepts and a head whose logits are (batch, classes)"
        ) from error


def examples_of(source: Pair | TorchDataset[Any], where: str) -> Examples:
    """The examples of one client or of the test set; `where` starts the sentence of a mistake."""
    if isinstance(source, tuple | list):
        if len(source) != 2:
            raise ConfigError(f"{where} is {len(source)} things: give a pair of tensors (inputs, targets)")
        inputs, targets = (torch.as_tensor(values) for values in source)
    else:
        items = [source[index] for index in range(len(source))]  # type: ignore[arg-type]
        if not items:
            raise ConfigError(f"{where} holds no examples: leave it out or give it some")
        inputs = torch.stack([torch.as_tensor(item[0]) for item in items])
        targets = torch.as_tensor([int(item[1]) for item in items])
    if len(inputs) != len(targets) or not len(targets):
        raise ConfigError(
            f"{where} has {len(inputs)} inputs and {len(targets)} targets: give as many, and at least one"
        )
    if targets.is_floating_point() or targets.dim() != 1:
        raise ConfigError(f"{where} has targets of type {targets.dtype}: give a vector of class numbers (int64)")
    return Examples(inputs, targets.long())
