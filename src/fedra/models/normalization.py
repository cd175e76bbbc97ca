"""Normalization layers, whose statistics federated averaging treats differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.errors import ConfigError

Norm = Literal["batch", "running", "fixed", "group"]


class _AnySizeBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization that can also train on one value per channel, which has no variance.

    Such a batch is normalized by the running statistics and does not change them.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() > input.shape[1] or not (self.training or self.running_mean is None):
            return super().forward(input)
        if self.running_mean is None:
            raise ConfigError(
                "a batch must have at least 2 examples for batch statistics, got 1: set local.drop_last = true, "
                "another local.batch, or norm = 'running' or 'group' in [model]"
            )
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class BatchNormMaps(_AnySizeBatchNorm, nn.BatchNorm2d):
    """Layer for feature maps (B, channels, H, W)."""


class BatchNormVectors(_AnySizeBatchNorm, nn.BatchNorm1d):
    """Layer for feature vectors (B, channels)."""


class _FixedStatistics(nn.modules.batchnorm._BatchNorm):
    """Batch normalization by its initial statistics, in training too: they never change."""

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class FixedBatchNormMaps(_FixedStatistics, nn.BatchNorm2d):
    """Layer for feature maps (B, channels, H, W)."""


class FixedBatchNormVectors(_FixedStatistics, nn.BatchNorm1d):
    """Layer for feature vectors (B, channels)."""


@dataclass(frozen=True)
class Normalizer:
    """Builds the normalization layers of one model.

    "batch": statistics of the batch, in training and in evaluation; nothing to average (FedSoL's code). "running": the
    usual BatchNorm, whose running statistics are buffers of the model. "fixed": BatchNorm with its initial statistics,
    for a pre-trained network: in a batch of one person's images the batch mean would remove what identifies the person.
    "group": GroupNorm with `groups` groups, independent of the batch (FedDyn's ResNet uses 2).
    """

    norm: Norm
    groups: int

    def maps(self, channels: int) -> nn.Module:
        """Return the layer for feature maps (B, channels, H, W)."""
        if self.norm == "group":
            return self._group(channels)
        if self.norm == "fixed":
            return FixedBatchNormMaps(channels)
        return BatchNormMaps(channels, track_running_stats=self.norm == "running")

    def vectors(self, channels: int) -> nn.Module:
        """Return the layer for feature vectors (B, channels)."""
        if self.norm == "group":
            return self._group(channels)
        if self.norm == "fixed":
            return FixedBatchNormVectors(channels)
        return BatchNormVectors(channels, track_running_stats=self.norm == "running")

    def _group(self, channels: int) -> nn.Module:
        if channels % self.groups:
            raise ConfigError(f"groups must divide the number of channels, {channels}, got {self.groups}")
        return nn.GroupNorm(self.groups, channels)


def with_fixed_scale(layer: nn.Module) -> nn.Module:
    """Return a normalization layer whose scale stays at 1: a buffer, which gradients and weight decay do not change."""
    scale = layer.get_parameter("weight").detach()
    del layer.weight
    layer.register_buffer("weight", torch.ones_like(scale))
    return layer
