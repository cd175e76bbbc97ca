"""Devices by name."""

from __future__ import annotations

import torch

from fedra.errors import ConfigError


def build_device(name: str) -> torch.device:
    """The device of that name, if it is there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the device '{name}' cannot be used here ({reason}): set device = 'cpu'") from None
    return device
