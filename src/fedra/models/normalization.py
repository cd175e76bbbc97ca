"""How a residual network normalizes: the statistics that federated averaging treats differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.errors import ConfigError

Norm = Literal["batch", "running", "fixed", "group"]


class _AnyBatch(nn.modules.batchnorm._BatchNorm):
    """Batch normalization that can also train on one value per channel, which has no variance.

    Such a batch is normalized by the running statistics and leaves no trace in them.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() > input.shape[1] or not (self.training or self.running_mean is None):
            return super().forward(input)
        if self.running_mean is None:
            raise ConfigError(
                "a batch of one example has no batch statistics: set local.drop_last = true, another local.batch, "
                "or norm = 'running' or 'group' in [model]"
            )
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class BatchNormMaps(_AnyBatch, nn.BatchNorm2d):
    """For feature maps (B, channels, H, W)."""


class BatchNormVectors(_AnyBatch, nn.BatchNorm1d):
    """For feature vectors (B, channels)."""


class _GivenStatistics(nn.modules.batchnorm._BatchNorm):
    """Batch normalization by the statistics it came with, in training too: they are read and never moved."""

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class FixedBatchNormMaps(_GivenStatistics, nn.BatchNorm2d):
    """For feature maps (B, channels, H, W)."""


class FixedBatchNormVectors(_GivenStatistics, nn.BatchNorm1d):
    """For feature vectors (B, channels)."""


@dataclass(frozen=True)
class Normalizer:
    """Makes the normalizing layers of one model.

    "batch": statistics of the batch, in training and in evaluation; nothing to average (FedSoL's code).
    "running": usual BatchNorm, whose running statistics are buffers of the model.
    "fixed": the same with the statistics it starts with, for a pre-trained network: in a batch of one person's images
    the mean to be taken off is the person.
    "group": GroupNorm with `groups` groups, independent of the batch (FedDyn's ResNet uses 2).
    """

    norm: Norm
    groups: int

    def maps(self, channels: int) -> nn.Module:
        """The layer for feature maps (B, channels, H, W)."""
        if self.norm == "group":
            return self._group(channels)
        if self.norm == "fixed":
            return FixedBatchNormMaps(channels)
        return BatchNormMaps(channels, track_running_stats=self.norm == "running")

    def vectors(self, channels: int) -> nn.Module:
        """The layer for feature vectors (B, channels)."""
        if self.norm == "group":
            return self._group(channels)
        if self.norm == "fixed":
            return FixedBatchNormVectors(channels)
        return BatchNormVectors(channels, track_running_stats=self.norm == "running")

    def _group(self, channels: int) -> nn.Module:
        if channels % self.groups:
            raise ConfigError(f"{channels} channels do not split into groups={self.groups}: choose a divisor")
        return nn.GroupNorm(self.groups, channels)


def with_fixed_scale(layer: nn.Module) -> nn.Module:
    """A normalizing layer whose scale stays at 1: a buffer, so that neither a gradient nor weight decay moves it."""
    scale = layer.get_parameter("weight").detach()
    del layer.weight
    layer.register_buffer("weight", torch.ones_like(scale))
    return layer
