"""Clients that remember: a run of them, and a store with known contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import tiny
from fedra.core.tree import Tree
from fedra.storage.client_state import ClientFiles, ClientStates

SIZE = 1024
MB = SIZE / 2**20
"""One client's memory, in the unit of `ram`."""


def config(**sections: Any) -> dict[str, Any]:
    return tiny.table(**{"rounds": 5, "algorithm": {"name": "moon"}, "cohort": {"fraction": 0.5}, **sections})


def memory(value: float) -> Tree:
    return {"part": {"w": torch.full((SIZE // 4,), float(value))}}


def value_of(tree: Tree) -> float:
    return float(tree["part"]["w"][0]) if tree else 0.0


def filled(tmp_path: Path, clients: int, ram: float) -> ClientStates:
    """A store in which client k remembers k + 1 after round k + 1, with room made in each round."""
    store = ClientStates(ClientFiles(tmp_path), ram * MB)
    for client in range(clients):
        store.put(client + 1, {client: store.pack(memory(client + 1))})
        store.expect(())
    return store


def settle(store: ClientStates) -> None:
    """Wait for both threads; the writing one may let the reading one go on."""
    store._writer.wait()
    store._reader.wait()


def longer(folder: Path) -> None:
    """A finished run of two rounds becomes a stopped one of five."""
    (folder / "summary.json").unlink()
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 5"))


def manifest_of(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / "manifest.json"
    return json.loads(path.read_text()) if path.exists() else {"round": 0, "clients": {}}
