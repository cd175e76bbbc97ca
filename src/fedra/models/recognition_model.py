"""The contract of every model: logits = head(body(x)), and no weight outside the two."""

from __future__ import annotations

from torch import Tensor, nn


class RecognitionModel(nn.Module):
    """`body` maps a batch to features (B, d), `head` maps features to logits (B, classes)."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(inputs))
        return logits


def keeps_contract(module: nn.Module) -> bool:
    """Whether `module` has the children `body` and `head` and holds no parameter or buffer elsewhere."""
    names = [*dict(module.named_parameters()), *dict(module.named_buffers())]
    return {"body", "head"} <= dict(module.named_children()).keys() and all(
        name.startswith(("body.", "head.")) for name in names
    )


def parameters_of(module: nn.Module) -> int:
    """The number of trainable and frozen weights; buffers do not count."""
    return sum(parameter.numel() for parameter in module.parameters())
