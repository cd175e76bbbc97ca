"""The contract of every model: logits = head(body(x)), and no weight outside the two."""

from __future__ import annotations

from torch import Tensor, nn


class RecognitionModel(nn.Module):
    """A network in two parts: `body` maps a batch to features (B, d), `head` maps features to logits (B, classes).

    Args:
        body: All layers but the last.
        head: The layer that computes the logits.

    Example:
        >>> from torch import nn
        >>> RecognitionModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 10)).head
        Linear(in_features=32, out_features=10, bias=True)
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(inputs))
        return logits


def has_body_and_head(module: nn.Module) -> bool:
    """Return whether `module` has the children `body` and `head` and no parameter or buffer elsewhere."""
    names = [*dict(module.named_parameters()), *dict(module.named_buffers())]
    return {"body", "head"} <= dict(module.named_children()).keys() and all(
        name.startswith(("body.", "head.")) for name in names
    )


def count_parameters(module: nn.Module) -> int:
    """Count the weights of a module, trainable or frozen.

    Args:
        module: Any module.

    Returns:
        The number of entries of its parameters, without buffers.

    Example:
        >>> count_parameters(nn.Linear(3, 2))
        8
    """
    return sum(parameter.numel() for parameter in module.parameters())
