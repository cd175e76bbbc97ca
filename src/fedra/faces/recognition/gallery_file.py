"""The content of a gallery file: one template per enrolled person, in safetensors format, without photos.

A template is the sum of the embeddings of a person's photos; only its direction matters. Photos can be added later, and
embeddings with a large norm, which come from photos of good quality, weigh more.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel
from torch import Tensor

from fedra.errors import ConfigError, DataError, nearest
from fedra.faces.metrics import Matches, top_k
from fedra.faces.metrics.embedding_checks import directions, lengths
from fedra.faces.recognition.answers import Match
from fedra.faces.recognition.gallery_index import GraphIndex
from fedra.faces.recognition.model_source import ModelSource
from fedra.file_reading import LARGE, read_file

Existing = Literal["refuse", "add", "replace"]
"""What to do with a person who is already enrolled."""
Engine = Literal["exact", "faiss"]
"""Search method."""
METADATA = "fedra-gallery"
MAX_HEADER_BYTES = 1_000_000
"""A file with a longer header is not a gallery."""


class GalleryMetadata(BaseModel):
    """Metadata of a gallery: paths of its model and detector if they are files, and the fingerprints of both."""

    version: Literal[1] = 1
    model: ModelSource | None = None
    fingerprint: str
    detector: str | None = None
    detector_fingerprint: str | None = None
    digest: str | None = None  # of all else in the file; None in memory, and in files of older versions

    def with_paths(self, change: Callable[[str], str]) -> GalleryMetadata:
        """Return the metadata with the paths of the model and of a detector file changed."""
        model = None if self.model is None else self.model.model_copy(update={"path": change(self.model.path)})
        detector = self.detector
        if detector is not None and ("/" in detector or os.sep in detector):  # otherwise the name of a built-in one
            detector = change(detector)
        return self.model_copy(update={"model": model, "detector": detector})


def _absolute(path: str, folder: Path) -> str:
    """The path that `_relative` was given."""
    return str((folder / path).resolve()) if path.startswith(("./", f".{os.sep}")) else path


def _relative(path: str, folder: Path) -> str:
    """The path as seen from a folder, so a gallery says nothing about the machine and can move with its model."""
    if not os.path.isabs(path):
        return path
    try:
        common = Path(os.path.commonpath([path, folder]))
    except ValueError:  # different drives
        return path
    return path if common == Path(common.anchor) else os.path.join(os.curdir, os.path.relpath(path, folder))


@dataclass(frozen=True, eq=False)
class GalleryContent:
    """The people of a gallery: names, templates (P, d) and numbers of photos (P,)."""

    about: GalleryMetadata
    names: tuple[str, ...]
    templates: Tensor
    photographs: Tensor

    @classmethod
    def empty(cls, about: GalleryMetadata) -> GalleryContent:
        """Return a gallery without people."""
        # torch.cat accepts shape (0,) together with any other shape.
        return cls(about, (), torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    @classmethod
    def read(cls, path: Path | str) -> GalleryContent:
        """Read a gallery file, all bytes at once, because another process may replace it at any time."""
        path = Path(path)
        try:
            data = read_file(path, LARGE)
        except FileNotFoundError:
            raise DataError(f"the gallery '{path}' does not exist: enroll a person first") from None
        except IsADirectoryError:
            raise ConfigError(f"the gallery must be a file, got the folder '{path}'") from None
        return cls.parse(data, path)

    @classmethod
    def parse(cls, data: bytes, path: Path) -> GalleryContent:
        """Parse the bytes of a gallery file; messages call it `path`."""
        try:
            tensors = safetensors.torch.load(data)  # checks the header against the length
            about = GalleryMetadata.model_validate_json(_header(data)["__metadata__"][METADATA])
            names, templates, photographs = (tensors[name] for name in ("names", "templates", "photographs"))
            if (names.dtype, templates.dtype, photographs.dtype) != (torch.uint8, torch.float32, torch.int64):
                raise ValueError("its tensors have unexpected types")
            people = _names(bytes(names.numpy()))
            if about.digest not in (None, _digest(about, tensors)):
                raise ValueError("its digest differs")
        except (KeyError, TypeError, ValueError, RecursionError, safetensors.SafetensorError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"'{path}' is not a gallery or is damaged ({reason}): use another file") from None
        if templates.dim() != 2 or not [len(people)] == [len(templates)] == list(photographs.shape):
            raise DataError(
                f"the gallery '{path}' is damaged ({len(people)} names, {len(templates)} templates): use another file"
            )
        about = about.with_paths(lambda stored: _absolute(stored, path.resolve().parent))
        return cls(about.model_copy(update={"digest": None}), people, templates, photographs)

    def pack(self, folder: Path | None = None) -> bytes:
        """Return the bytes of the gallery file, with paths relative to its folder where both have a common one."""
        about = self.about if folder is None else self.about.with_paths(lambda path: _relative(path, folder.resolve()))
        tensors = {
            "names": torch.frombuffer(bytearray(json.dumps(self.names).encode()), dtype=torch.uint8),
            "templates": self.templates.contiguous(),
            "photographs": self.photographs,
        }
        about = about.model_copy(update={"digest": _digest(about, tensors)})
        packed: bytes = safetensors.torch.save(tensors, {METADATA: about.model_dump_json()})
        return packed

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of photos that each person was enrolled with."""
        return dict(zip(self.names, self.photographs.tolist(), strict=True))

    def check_model(self, fingerprint: str) -> None:
        """Raise unless the fingerprint is that of the model that computed the templates."""
        if fingerprint != self.about.fingerprint:
            origin = f" ('{self.about.model.path}' at that time)" if self.about.model else ""
            raise ConfigError(
                f"the gallery was created with another model{origin}, and embeddings of different models cannot be "
                "compared: use that model, or enroll all people again"
            )

    def with_people(self, people: dict[str, Tensor], existing: Existing = "refuse") -> GalleryContent:
        """Return the gallery with the given people added, each with embeddings (n, d)."""
        rows = {name: row for row, name in enumerate(self.names)}
        sums, counts = {}, {}
        for name, features in people.items():
            directions(f"the embeddings of '{name}'", features)  # raises for zero or infinite embeddings
            if name in rows and existing == "refuse":
                raise ConfigError(already_enrolled(name))
            sums[name], counts[name] = features.float().sum(dim=0), len(features)
        new = [name for name in people if name not in rows]
        templates = torch.cat([self.templates, *(sums[name][None] for name in new)])
        photographs = torch.cat([self.photographs, torch.tensor([counts[name] for name in new], dtype=torch.int64)])
        for name in sums.keys() - set(new):
            adds = existing == "add"
            templates[rows[name]] = sums[name] + templates[rows[name]] * adds
            photographs[rows[name]] = counts[name] + photographs[rows[name]] * adds
        return GalleryContent(self.about, (*self.names, *new), templates, photographs)

    def without(self, name: str) -> GalleryContent:
        """Return the gallery without a person."""
        if name not in self.names:
            hint = nearest(name, self.names) if self.names else "the gallery is empty"
            raise ConfigError(f"'{name}' is not enrolled: {hint}")
        rows = torch.tensor([row for row, other in enumerate(self.names) if other != name], dtype=torch.int64)
        names = tuple(other for other in self.names if other != name)
        return GalleryContent(self.about, names, self.templates[rows], self.photographs[rows])

    def search(self, features: Tensor, top: int = 5, engine: Engine = "exact") -> list[list[Match]]:
        """Return the most similar people of each embedding (N, d), best first."""
        if not len(self):
            raise DataError("the gallery is empty: enroll a person first")
        if top < 1:
            raise ConfigError(f"top must be at least 1, got {top}")
        top = min(top, len(self))
        if engine == "faiss":
            return self._add_names(self._index.search(features, top))
        return self._add_names(top_k(features, self.templates, top, norms=self._norms))

    @cached_property
    def _index(self) -> GraphIndex:
        return GraphIndex(self.templates)

    @cached_property
    def _norms(self) -> Tensor:
        """Norms of the templates, computed at the first search."""
        return lengths("the gallery's templates", self.templates)

    def _add_names(self, found: Matches) -> list[list[Match]]:
        return [
            [Match(self.names[row], score) for row, score in zip(rows, scores, strict=True) if row >= 0]
            for rows, scores in zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        ]


def already_enrolled(name: str) -> str:
    """Return the error message for a person who is already enrolled."""
    return (
        f"'{name}' is already enrolled: add the photos (--add, existing='add' in Python) or replace the person "
        "(--replace, existing='replace' in Python)"
    )


def names_in(path: Path) -> tuple[str, ...]:
    """Return the names enrolled in a file, empty if it is not a gallery; reads only the header and the names."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:
                return ()
            start = file.read(length)
            header = json.loads(start)
            if METADATA not in header["__metadata__"]:
                return ()
            begin, end = header["names"]["data_offsets"]
            if not 0 <= begin <= end <= os.fstat(file.fileno()).st_size:
                return ()
            file.seek(8 + length + begin)
            return _names(file.read(end - begin))
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        return ()


def _header(data: bytes) -> Any:
    """Parse the safetensors header: its length in eight bytes, then JSON."""
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def _digest(about: GalleryMetadata, tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of a gallery, by which a changed byte is noticed."""
    digest = hashlib.sha256(about.model_dump_json(exclude={"digest"}).encode())
    for name in ("names", "templates", "photographs"):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:32]


def _names(data: bytes) -> tuple[str, ...]:
    people = json.loads(data)
    if not isinstance(people, list) or not all(isinstance(name, str) for name in people):
        raise ValueError("its names are not a list of strings")
    return tuple(people)
