"""Client state between rounds: in RAM up to a limit, the rest in one file per client."""

from __future__ import annotations

from fedra.storage.client_state.client_files import ClientFiles, DamagedFile, File
from fedra.storage.client_state.packed_tree import PackedTree, group_by_stack, pack
from fedra.storage.client_state.store import ClientStates

__all__ = ["ClientFiles", "ClientStates", "DamagedFile", "File", "PackedTree", "group_by_stack", "pack"]
