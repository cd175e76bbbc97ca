"""Devices by name."""

from __future__ import annotations

import torch

from fedra.errors import ConfigError


def build_device(name: str) -> torch.device:
    """The device of that name, if torch can compute on it here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception:  # torch answers for each kind in its own way, in up to 1,400 characters
        found = ", ".join(_found())
        raise ConfigError(f"the device '{name}' cannot be used here: choose one that torch finds ({found})") from None
    return device


def _found() -> list[str]:
    names = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return [*names, "mps"] if torch.backends.mps.is_available() else names
