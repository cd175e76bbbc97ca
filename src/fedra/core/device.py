"""Devices by name."""

from __future__ import annotations

import torch

from fedra.errors import ConfigError


def build_device(name: str) -> torch.device:
    """The device of that name; raises ConfigError if torch cannot use it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception:  # each backend raises its own type, with up to 1,400 characters
        raise ConfigError(
            f"the device must be one that torch can use here ({', '.join(_available())}), got '{name}'"
        ) from None
    return device


def _available() -> list[str]:
    names = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return [*names, "mps"] if torch.backends.mps.is_available() else names
