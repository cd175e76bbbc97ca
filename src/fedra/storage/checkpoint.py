"""A run's state on disk: tensors and JSON only, and never half of one.

A checkpoint is a manifest that names its files. New files are written under names of their own, then the manifest
is replaced by a rename, which is the one moment at which the checkpoint changes; what the new manifest replaced is
removed afterward. Clients whose memory did not change keep their files; a memory is read when it is needed.

All this happens in a thread of its own while the next round trains. What is written cannot change meanwhile: a round
puts new tensors into the state and leaves the old ones as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
from pydantic import BaseModel, NonNegativeInt, ValidationError
from torch import Tensor

from fedra.config.schema import RAM, StoredPrecision
from fedra.core import tree
from fedra.core.model import Weights
from fedra.core.tree import Params, Tree
from fedra.core.view import Server
from fedra.errors import RunError
from fedra.storage.background import Background
from fedra.storage.client_state import ClientFiles, Damaged, File, Memories, pack
from fedra.storage.client_state.client_files import read_packed, write_packed
from fedra.storage.client_state.store import Held
from fedra.storage.state import State
from fedra.writing import write_atomically

MANIFEST = "manifest.json"
LEFTOVERS = ("server-*.safetensors*", "clients/*/*.safetensors*", f"{MANIFEST}.*.tmp")
"""What a checkpoint's folder may hold beside its manifest; a kill leaves temporary names behind."""


class Manifest(BaseModel):
    """The rounds done, the server's file, and the files of all clients that remember anything."""

    version: Literal[3] = 3
    round: NonNegativeInt
    server: File
    clients: dict[int, File]


class Checkpoint:
    """The checkpoint of one run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clients = ClientFiles(folder / "clients")
        self._server: File | None = None
        self._saved: int | None = None
        self._swept = False
        self._writer = Background()

    def exists(self) -> bool:
        return (self._folder / MANIFEST).exists()

    def clear(self) -> None:
        """Remove the checkpoint; files of other names stay."""
        if not self._folder.is_dir():
            return
        for path in (path for kind in (*LEFTOVERS, MANIFEST) for path in self._folder.glob(kind)):
            path.unlink()
        for folder in (*self._folder.glob("clients/*"), self._folder / "clients", self._folder):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def memories(
        self, ram: float = RAM, precision: StoredPrecision = "float32", known: Mapping[int, File] | None = None
    ) -> Memories:
        """Client memories whose files are this checkpoint's."""
        return Memories(self._clients, ram, precision, known, self._writer)

    def save(self, state: State) -> None:
        """Begin to write the state as it is now, after the one before is written; an error in that is raised here.

        Whatever happens meanwhile, the old checkpoint or the new one is there whole.
        """
        self._writer.wait()
        if self._saved == state.round:
            self._writer.start(self._sweep)
            return
        round, server, memories, unsaved = state.round, state.server, state.memory, state.memory.unsaved()
        self._writer.start(lambda: self._save(round, server, memories, unsaved))

    def wait(self) -> None:
        """Wait until what was saved is on the disk; an error in writing it is raised here."""
        self._writer.wait()

    def close(self) -> None:
        """Let a file that is being written come to its end."""
        self._writer.join()

    def _save(self, round: int, server: Server, memories: Memories, unsaved: Mapping[int, Held]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        old, new = self._server, File(round, write_packed(self._server_path(round), pack(_server_tree(server))))
        memories.write(unsaved)
        self._clients.sync()
        manifest = Manifest(round=round, server=new, clients=memories.files())
        write_atomically(self._folder / MANIFEST, manifest.model_dump_json().encode())
        self._server, self._saved = new, round
        memories.sweep(round)
        if old is not None:
            self._server_path(old.round).unlink(missing_ok=True)
        self._sweep()

    def load(self, server: Server, ram: float = RAM, precision: StoredPrecision = "float32") -> State:
        """The state of the last checkpoint; `server` is a fresh one, to compare names and shapes with."""
        manifest = self._manifest()
        path = self._server_path(manifest.server.round)
        try:
            found = read_packed(path, manifest.server.digest).tree()
        except Damaged as error:
            raise RunError(f"{error}, and without it the checkpoint cannot be used: start the run anew") from None
        _compare(_server_tree(server), found, path)
        weights = Weights(found["params"], found.get("buffers", {}))
        restored = Server(weights=weights, memory=found.get("memory", {}))
        self._server, self._saved = manifest.server, manifest.round
        return State(manifest.round, restored, self.memories(ram, precision, manifest.clients))

    def examine(self, advance: Callable[[int], None] = lambda done: None) -> tuple[int, list[str]]:
        """The rounds done, and a sentence about every damaged file; `advance` is told of each client looked at."""
        while True:
            manifest = self._manifest()
            damages = self._damages(manifest, advance)
            if not damages or self._manifest() == manifest:  # a run that goes on may have replaced files meanwhile
                return manifest.round, damages

    def _damages(self, manifest: Manifest, advance: Callable[[int], None]) -> list[str]:
        damages = []
        try:
            read_packed(self._server_path(manifest.server.round), manifest.server.digest)
        except Damaged as error:
            damages.append(f"the server: {error}; the run cannot be resumed: start it anew")
        for client, file in sorted(manifest.clients.items()):
            try:
                self._clients.read(client, file)
            except Damaged as error:
                damages.append(f"client {client}: {error}; a resumed run starts it again from the global model")
            advance(1)
        return damages

    def client_count(self) -> int:
        """How many clients have a file."""
        return len(self._manifest().clients)

    def _manifest(self) -> Manifest:
        path = self._folder / MANIFEST
        try:
            return Manifest.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            reason = ".".join(str(step) for step in (*first["loc"], first["msg"]))
            raise RunError(f"the checkpoint manifest '{path}' is damaged ({reason}): start the run anew") from None

    def _server_path(self, round: int) -> Path:
        return self._folder / f"server-{round:06d}.safetensors"

    def _sweep(self) -> None:
        """Remove what an earlier process left and the manifest does not name; once, for later leavings are known."""
        if self._swept:
            return
        manifest = self._manifest()
        wanted = {self._clients.path(client, file.round) for client, file in manifest.clients.items()}
        wanted.add(self._server_path(manifest.server.round))
        for path in (path for kind in LEFTOVERS for path in self._folder.glob(kind)):
            if path not in wanted:
                path.unlink(missing_ok=True)
        self._swept = True


def _server_tree(server: Server) -> Tree:
    return {"params": server.weights.params, "buffers": server.weights.buffers, "memory": server.memory}


def _compare(expected: Tree, found: Tree, path: Path) -> None:
    left, right = tree.flatten(expected), tree.flatten(found)
    for name in left.keys() | right.keys():
        ours, theirs = left.get(name), right.get(name)
        if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor) or ours.shape != theirs.shape:
            raise RunError(
                f"the checkpoint '{path}' does not fit this configuration ('{name}' differs): "
                "resume with the configuration it was made with"
            )


def save_model(path: Path, weights: Weights, about: dict[str, Any]) -> None:
    """The model as safetensors. All metadata are one JSON string: several keys would be written in random order."""
    flat: Params = {**weights.params, **weights.buffers}
    flat = {name: value.detach().cpu().contiguous() for name, value in flat.items()}
    write_atomically(path, safetensors.torch.save(flat, {"fedra": json.dumps(about, sort_keys=True)}))


def load_model(path: Path) -> tuple[Params, dict[str, Any]]:
    """The tensors of a saved model, and what was written about them."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("fedra", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"the model file '{path}' cannot be read ({error})") from None
