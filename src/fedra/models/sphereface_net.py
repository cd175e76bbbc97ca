"""SphereFace's networks (Liu et al. 2017): residual, with PReLU, without normalization."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from fedra.models.convolution import size_after_halving
from fedra.models.recognition_model import RecognitionModel
from fedra.models.stem import input_layers
from fedra.models.zoo import MODELS

Size = Annotated[int, Field(gt=0)]


class PlainBlock(nn.Module):
    """Compute x + prelu(conv(prelu(conv(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.PReLU(channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.PReLU(channels),
        )

    def forward(self, maps: Tensor) -> Tensor:
        summed: Tensor = maps + self.residual(maps)
        return summed


def _register(depth: int, counts: tuple[int, int, int, int], weights: str) -> None:
    def sphere(shape: tuple[int, ...], classes: int, *, embedding: Size = 512, width: Size = 64) -> RecognitionModel:
        _, (channels, height, image_width) = input_layers(f"sphere{depth}", shape, smallest=16)
        body: OrderedDict[str, nn.Module] = OrderedDict()
        for stage, count in enumerate(counts):
            wider = width * 2**stage
            halving = nn.Conv2d(channels, wider, 3, stride=2, padding=1)
            body[f"stage{stage + 1}"] = nn.Sequential(
                halving, nn.PReLU(wider), *(PlainBlock(wider) for _ in range(count))
            )
            channels = wider
        high, wide = size_after_halving(height, image_width, len(counts))
        body["flatten"] = nn.Flatten()
        body["embedding"] = nn.Linear(channels * high * wide, embedding)
        return RecognitionModel(_initialize(nn.Sequential(body)), nn.Linear(embedding, classes, bias=False))

    sphere.__doc__ = f"""SphereFace's network of {depth} layers (Liu et al. 2017): {weights} weights before the head.

    The weights are counted at 112x112. There is no normalization, so nothing depends on the batch. The sides are halved
    four times; the feature is the linear embedding.

    Args:
        shape: Shape (C, H, W) of one image.
        classes: Number of classes.
        embedding: Length of the embedding.
        width: Channels of the first stage.

    Returns:
        The model, with a `body` and a `head`.
    """
    MODELS.add(f"sphere{depth}")(sphere)


def _initialize(body: nn.Sequential) -> nn.Sequential:
    """Initialize by Glorot where the shape changes and from N(0, 0.01^2) in the blocks, near the identity."""
    for layer in body.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            if layer.bias is None:
                nn.init.normal_(layer.weight, 0.0, 0.01)
            else:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
    return body


_register(20, (1, 2, 4, 1), "24,501,952")
_register(64, (3, 7, 16, 3), "49,726,656")
