"""What clients remember between rounds: in RAM up to a cap, the rest in a file for each client."""

from __future__ import annotations

from fedra.storage.client_state.client_files import ClientFiles, Damaged, File
from fedra.storage.client_state.packed_tree import PackedTree, pack
from fedra.storage.client_state.store import Memories

__all__ = ["ClientFiles", "Damaged", "File", "Memories", "PackedTree", "pack"]
