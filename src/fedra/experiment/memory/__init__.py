"""What clients remember between rounds: in RAM up to a cap, the rest in a file for each client."""

from __future__ import annotations

from fedra.experiment.memory.files import ClientFiles, Damaged, File
from fedra.experiment.memory.packing import Packed, StoredPrecision, pack
from fedra.experiment.memory.store import RAM, Memories

__all__ = ["RAM", "ClientFiles", "Damaged", "File", "Memories", "Packed", "StoredPrecision", "pack"]
