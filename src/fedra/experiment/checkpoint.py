"""A run's state on disk: tensors and JSON only, and never half of one.

A checkpoint is a manifest that names its files. New files are written under names of their own, then the manifest
is replaced by a rename, which is the one moment at which the checkpoint changes; files that no manifest names
are swept afterwards. Clients whose memory did not change keep their files.

All this happens in a thread of its own while the next round trains. What is written cannot change meanwhile: a round
puts new tensors into the state and leaves the old ones as they are.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
from pydantic import BaseModel, NonNegativeInt, ValidationError
from torch import Tensor

from fedra.core import tree
from fedra.core.model import Weights
from fedra.core.tree import Params, Tree
from fedra.core.view import Server
from fedra.errors import RunError
from fedra.experiment.background import Background
from fedra.experiment.training import State
from fedra.writing import write_atomically

MANIFEST = "manifest.json"
LEFTOVERS = ("*.safetensors*", "clients/*.safetensors*", f"{MANIFEST}.*.tmp")
"""What a checkpoint's folder may hold beside its manifest; a kill leaves temporary names behind."""


class Manifest(BaseModel):
    """The rounds done, and the files of the server and of every client that remembers anything."""

    version: Literal[2] = 2
    round: NonNegativeInt
    server: str
    clients: dict[int, str]


class Checkpoint:
    """The checkpoint of one run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clients: dict[int, str] = {}
        self._saved: int | None = None
        self._writer = Background()

    def exists(self) -> bool:
        return (self._folder / MANIFEST).exists()

    def save(self, state: State) -> None:
        """Begin to write the state as it is now, after the one before is written; an error in that is raised here.

        Whatever happens meanwhile, the old checkpoint or the new one is there whole.
        """
        self._writer.wait()
        if self._saved == state.round:
            return
        changed = {client: state.memory[client] for client in sorted(state.changed)}
        round, server = state.round, state.server
        self._writer.start(lambda: self._save(round, server, changed))
        state.changed.difference_update(changed)

    def wait(self) -> None:
        """Wait until what was saved is on the disk; an error in writing it is raised here."""
        self._writer.wait()

    def close(self) -> None:
        """Let a file that is being written come to its end."""
        self._writer.join()

    def _save(self, round: int, server: Server, changed: dict[int, Tree]) -> None:
        (self._folder / "clients").mkdir(parents=True, exist_ok=True)
        written = self._write(f"server-{round:06d}.safetensors", _server_tree(server))
        for client, memory in changed.items():
            self._clients[client] = self._write(f"clients/{client:07d}-{round:06d}.safetensors", memory)
        manifest = Manifest(round=round, server=written, clients=self._clients)
        write_atomically(self._folder / MANIFEST, manifest.model_dump_json(indent=1).encode())
        self._saved = round
        self._sweep({written, *self._clients.values()})

    def load(self, server: Server) -> State:
        """The state of the last checkpoint; `server` is a fresh one, to compare names and shapes with."""
        manifest = self._manifest()
        found = self._read(manifest.server)
        _compare(_server_tree(server), found, self._folder / manifest.server.partition("#")[0])
        restored = Server(Weights(found["params"], found.get("buffers", {})), found.get("memory", {}))
        memory = {client: self._read(name) for client, name in manifest.clients.items()}
        self._clients, self._saved = manifest.clients, manifest.round
        return State(manifest.round, restored, memory)

    def _manifest(self) -> Manifest:
        path = self._folder / MANIFEST
        try:
            return Manifest.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            reason = ".".join(str(step) for step in (*first["loc"], first["msg"]))
            raise RunError(f"the checkpoint manifest '{path}' is damaged ({reason}): start the run anew") from None

    def _write(self, name: str, values: Tree) -> str:
        """Save a tree and return its name with a checksum.

        Safetensors orders names in its own way, but a norm's last bit depends on the order of its sum: entries are
        numbered.
        """
        numbered = enumerate(tree.flatten(values).items())
        data = safetensors.torch.save(
            {f"{number:06d}|{path}": value.detach().cpu().contiguous() for number, (path, value) in numbered}
        )
        write_atomically(self._folder / name, data)
        return f"{name}#{hashlib.sha256(data).hexdigest()[:32]}"

    def _read(self, entry: str) -> Tree:
        name, _, digest = entry.partition("#")
        path = self._folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise RunError(f"the checkpoint file '{path}' cannot be read ({error}): start the run anew") from None
        if hashlib.sha256(data).hexdigest()[:32] != digest:
            raise RunError(f"the checkpoint file '{path}' is damaged (its checksum differs): start the run anew")
        entries = sorted(safetensors.torch.load(data).items())
        return tree.unflatten({name.partition("|")[2]: value for name, value in entries})

    def _sweep(self, entries: set[str]) -> None:
        wanted = {entry.partition("#")[0] for entry in entries}
        for path in (path for kind in LEFTOVERS for path in self._folder.glob(kind)):
            if str(path.relative_to(self._folder).as_posix()) not in wanted:
                path.unlink(missing_ok=True)


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
