"""How a residual network normalises: the statistics that federated averaging treats differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from fedra.errors import ConfigError

Norm = Literal["batch", "running", "group"]


@dataclass(frozen=True)
class Normaliser:
    """Makes the normalising layers of one model.

    "batch": statistics of the batch, in training and in evaluation; nothing to average (FedSoL's code).
    "running": usual BatchNorm, whose running statistics are buffers of the model.
    "group": GroupNorm with `groups` groups, independent of the batch (FedDyn's ResNet uses 2).
    """

    norm: Norm
    groups: int

    def maps(self, channels: int) -> nn.Module:
        """The layer for feature maps (B, channels, H, W)."""
        if self.norm == "group":
            return self._group(channels)
        return nn.BatchNorm2d(channels, track_running_stats=self.norm == "running")

    def vectors(self, channels: int) -> nn.Module:
        """The layer for feature vectors (B, channels)."""
        if self.norm == "group":
            return self._group(channels)
        return nn.BatchNorm1d(channels, track_running_stats=self.norm == "running")

    def _group(self, channels: int) -> nn.Module:
        if channels % self.groups:
            raise ConfigError(f"{channels} channels do not split into groups={self.groups}: choose a divisor")
        return nn.GroupNorm(self.groups, channels)
