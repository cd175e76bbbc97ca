"""A run's state on disk, as tensors and JSON, replaced atomically.

A checkpoint is a manifest that lists its files. New files are written under new names, then the manifest is replaced
by a rename, which switches to the new checkpoint at once; files that it no longer lists are removed afterward. Clients
whose state did not change keep their files; client state is read on demand.

A background thread writes while the next round trains. This is safe because a round never modifies tensors of the
state in place; it replaces them.
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
from fedra.file_reading import LARGE, read_file
from fedra.storage.background import Background
from fedra.storage.client_state import ClientFiles, ClientStates, DamagedFile, File, pack
from fedra.storage.client_state.client_files import read_packed, write_packed
from fedra.storage.client_state.store import Snapshot
from fedra.storage.model_file import digest_model
from fedra.storage.state import State
from fedra.writing import write_atomically

MANIFEST = "manifest.json"
LEFTOVERS = ("server-*.safetensors*", "clients/*/*.safetensors*", f"{MANIFEST}.*.tmp")
"""Files in a checkpoint's folder in addition to its manifest; a killed process leaves temporary ones."""


class Manifest(BaseModel):
    """The number of rounds done, the server's file, and the files of all clients that have state."""

    version: Literal[3] = 3
    round: NonNegativeInt
    server: File
    clients: dict[int, File]
    record: str | None = None  # digest of metrics.jsonl


class Checkpoint:
    """The checkpoint of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clients = ClientFiles(folder / "clients")
        self._server: File | None = None
        self._saved: int | None = None
        self._record: str | None = None
        self._swept = False
        self._writer = Background()

    def exists(self) -> bool:
        return (self._folder / MANIFEST).exists()

    def clear(self) -> None:
        """Remove the checkpoint, but no other files."""
        if not self._folder.is_dir():
            return
        for path in (path for kind in (*LEFTOVERS, MANIFEST) for path in self._folder.glob(kind)):
            path.unlink()
        for folder in (*self._folder.glob("clients/*"), self._folder / "clients", self._folder):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def memories(
        self, ram: float = RAM, precision: StoredPrecision = "float32", known: Mapping[int, File] | None = None
    ) -> ClientStates:
        """A store of client state whose files belong to this checkpoint."""
        return ClientStates(self._clients, ram, precision, known, self._writer)

    def save(self, state: State, record: str | None = None) -> None:
        """Start writing the current state; waits for the previous write and raises its error.

        `record` is the digest of metrics.jsonl up to this round. At any moment either the old or the new checkpoint is
        complete on disk.
        """
        self._writer.wait()
        if self._saved == state.round:
            self._writer.start(self._sweep)
            return
        round, server, memories, unsaved = state.round, state.server, state.memory, state.memory.unsaved()
        self._record = record
        self._writer.start(lambda: self._save(round, server, memories, unsaved))

    def wait(self) -> None:
        """Wait until the state is on disk, and raise any error of writing it."""
        self._writer.wait()

    def saved_round(self) -> int:
        """The number of rounds that are on disk."""
        return self._saved or 0

    def close(self) -> None:
        """Wait for a write in progress."""
        self._writer.join()

    def _save(self, round: int, server: Server, memories: ClientStates, unsaved: Mapping[int, Snapshot]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        old, new = self._server, File(round, write_packed(self._server_path(round), pack(_server_tree(server))))
        memories.write(unsaved)
        self._clients.sync()
        manifest = Manifest(round=round, server=new, clients=memories.files(), record=self._record)
        write_atomically(self._folder / MANIFEST, manifest.model_dump_json().encode())
        self._server, self._saved = new, round
        memories.sweep(round)
        if old is not None:
            self._server_path(old.round).unlink(missing_ok=True)
        self._sweep()

    def load(
        self,
        server: Server,
        ram: float = RAM,
        precision: StoredPrecision = "float32",
        grow: Callable[[Weights], Weights] = lambda weights: weights,
    ) -> State:
        """The state of the last checkpoint; its names and shapes must match those of `server`, a new one.

        `grow` adds to the weights what has come since, such as rows of new classes.
        """
        manifest = self._manifest()
        path = self._server_path(manifest.server.round)
        try:
            found = read_packed(path, manifest.server.digest).tree()
        except DamagedFile as error:
            raise RunError(f"{error}, and the checkpoint cannot be used without it: start a new run") from None
        weights = grow(Weights(found["params"], found.get("buffers", {})))
        _compare(_server_tree(server), {**found, "params": weights.params}, path)
        restored = Server(weights=weights, memory=found.get("memory", {}))
        self._server, self._saved = manifest.server, manifest.round
        return State(manifest.round, restored, self.memories(ram, precision, manifest.clients))

    def examine(self, advance: Callable[[int], None] = lambda done: None) -> tuple[int, list[str]]:
        """The rounds done, and a message for every damaged file; `advance` is called after each client."""
        while True:
            manifest = self._manifest()
            problems = self._problems(manifest, advance)
            if not problems or self._manifest() == manifest:  # an active run may have replaced files meanwhile
                return manifest.round, problems

    def _problems(self, manifest: Manifest, advance: Callable[[int], None]) -> list[str]:
        problems = []
        try:
            read_packed(self._server_path(manifest.server.round), manifest.server.digest)
        except DamagedFile as error:
            problems.append(f"the server: {error}; the run cannot be resumed: start a new run")
        for client, file in sorted(manifest.clients.items()):
            try:
                self._clients.read(client, file)
            except DamagedFile as error:
                problems.append(f"client {client}: {error}; a resumed run starts it again from the global model")
            advance(1)
        return problems

    def done(self) -> int:
        """The number of rounds of the last checkpoint."""
        return self._manifest().round

    def record_digest(self) -> str | None:
        """The digest of metrics.jsonl at the last checkpoint; None if it has none."""
        return self._manifest().record

    def client_count(self) -> int:
        """The number of clients that have a file."""
        return len(self._manifest().clients)

    def _manifest(self) -> Manifest:
        path = self._folder / MANIFEST
        try:
            return Manifest.model_validate_json(read_file(path, LARGE))
        except ValidationError as error:
            first = error.errors()[0]
            reason = ".".join(str(step) for step in (*first["loc"], first["msg"]))
            raise RunError(f"the checkpoint manifest '{path}' is damaged ({reason}): start a new run") from None

    def _server_path(self, round: int) -> Path:
        return self._folder / f"server-{round:06d}.safetensors"

    def _sweep(self) -> None:
        """Remove files of an earlier process that the manifest does not list; later ones are removed when replaced."""
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
        one, other = left.get(name), right.get(name)
        if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
            raise RunError(
                f"the checkpoint '{path}' must match the configuration, but '{name}' differs: resume with the "
                "configuration that the run was started with"
            )


def save_model(path: Path, weights: Weights, about: dict[str, Any], private: bool = False) -> str:
    """Save a model as safetensors, and return the file's digest.

    All metadata are one JSON string, because the order of keys is random.

    With `private`, only the owner can read the file: it holds class vectors of people, with their names.
    """
    flat: Params = {**weights.params, **weights.buffers}
    flat = {name: value.detach().cpu().contiguous() for name, value in flat.items()}
    packed = safetensors.torch.save(flat, {"fedra": json.dumps(about, sort_keys=True)})
    write_atomically(path, packed, private=private)
    return digest_model(packed)


def load_model(path: Path) -> tuple[Params, dict[str, Any]]:
    """The tensors and the metadata of a saved model."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("fedra", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise RunError(f"the model file '{path}' cannot be read ({error}): give another file") from None
