"""Tensors on their way to the device."""

from __future__ import annotations

import torch
from torch import Tensor


def brought(values: Tensor, device: torch.device) -> Tensor:
    """The values on the device. To a GPU they go from pinned memory, a copy that nobody has to wait for."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
