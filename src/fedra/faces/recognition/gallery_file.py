"""The content of a gallery: one template for each enrolled person in one safetensors file; never a photograph.

A template is the sum of the embeddings of a person's photographs, of which only the direction counts: photographs can
be added later, and long embeddings, which are those of good photographs, weigh more.
"""

from __future__ import annotations

import json
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

Existing = Literal["refuse", "add", "replace"]
"""What becomes of a person who is enrolled already."""
Engine = Literal["exact", "faiss"]
"""How a gallery is searched."""
METADATA = "fedra-gallery"
LONGEST_HEADER = 1_000_000
"""Bytes of the longest header of a file that could be a gallery."""


class GalleryMetadata(BaseModel):
    """What a gallery says of itself: its model and detector where they are files, and the fingerprints of both."""

    version: Literal[1] = 1
    model: ModelSource | None = None
    fingerprint: str
    detector: str | None = None
    detector_fingerprint: str | None = None


@dataclass(frozen=True, eq=False)
class GalleryContent:
    """The people of a gallery: names, templates (P, d) and how many photographs each stands for (P,)."""

    about: GalleryMetadata
    names: tuple[str, ...]
    templates: Tensor
    photographs: Tensor

    @classmethod
    def empty(cls, about: GalleryMetadata) -> GalleryContent:
        """A gallery of no people."""
        # One empty dimension is the one shape that torch.cat joins with anything.
        return cls(about, (), torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    @classmethod
    def read(cls, path: Path) -> GalleryContent:
        """The gallery in a file, whose bytes are read once: another process may replace it at any moment."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise DataError(f"there is no gallery '{path}': enroll somebody first") from None
        except IsADirectoryError:
            raise ConfigError(f"'{path}' is a folder: give a file for the gallery") from None
        return cls.parse(data, path)

    @classmethod
    def parse(cls, data: bytes, path: Path) -> GalleryContent:
        """The gallery in these bytes of the file `path`."""
        try:
            tensors = safetensors.torch.load(data)  # checks the header against the length
            about = GalleryMetadata.model_validate_json(_header(data)["__metadata__"][METADATA])
            names, templates, photographs = (tensors[name] for name in ("names", "templates", "photographs"))
            if (names.dtype, templates.dtype, photographs.dtype) != (torch.uint8, torch.float32, torch.int64):
                raise ValueError("its tensors are of other types")
            people = _names(bytes(names.numpy()))
        except (KeyError, TypeError, ValueError, RecursionError, safetensors.SafetensorError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"'{path}' is not a gallery or is damaged ({reason}): enroll into another file") from None
        if templates.dim() != 2 or not [len(people)] == [len(templates)] == list(photographs.shape):
            raise DataError(f"the gallery '{path}' is damaged: its names and templates differ in number")
        return cls(about, people, templates, photographs)

    def pack(self) -> bytes:
        """All that the file holds."""
        tensors = {
            "names": torch.frombuffer(bytearray(json.dumps(self.names).encode()), dtype=torch.uint8),
            "templates": self.templates.contiguous(),
            "photographs": self.photographs,
        }
        packed: bytes = safetensors.torch.save(tensors, {METADATA: self.about.model_dump_json()})
        return packed

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many photographs each person was enrolled with."""
        return dict(zip(self.names, self.photographs.tolist(), strict=True))

    def check_model(self, fingerprint: str) -> None:
        """Refuse another model than the one whose templates these are."""
        if fingerprint != self.about.fingerprint:
            was = f" ('{self.about.model.path}' as it was then)" if self.about.model else ""
            raise ConfigError(
                f"the gallery was made by another model{was}: embeddings of different models cannot be compared, so "
                "use that model or enroll everybody again"
            )

    def with_people(self, people: dict[str, Tensor], existing: Existing = "refuse") -> GalleryContent:
        """The gallery with more people, each by the embeddings (n, d) of their photographs."""
        places = {name: place for place, name in enumerate(self.names)}
        sums, counts = {}, {}
        for name, features in people.items():
            directions(f"the embeddings of '{name}'", features)
            if name in places and existing == "refuse":
                raise ConfigError(already(name))
            sums[name], counts[name] = features.float().sum(dim=0), len(features)
        fresh = [name for name in people if name not in places]
        templates = torch.cat([self.templates, *(sums[name][None] for name in fresh)])
        photographs = torch.cat([self.photographs, torch.tensor([counts[name] for name in fresh], dtype=torch.int64)])
        for name in sums.keys() - set(fresh):
            kept = existing == "add"
            templates[places[name]] = sums[name] + templates[places[name]] * kept
            photographs[places[name]] = counts[name] + photographs[places[name]] * kept
        return GalleryContent(self.about, (*self.names, *fresh), templates, photographs)

    def without(self, name: str) -> GalleryContent:
        """The gallery without a person."""
        if name not in self.names:
            hint = nearest(name, self.names) if self.names else "the gallery is empty"
            raise ConfigError(f"'{name}' is not enrolled: {hint}")
        kept = torch.tensor([place for place, known in enumerate(self.names) if known != name], dtype=torch.int64)
        names = tuple(known for known in self.names if known != name)
        return GalleryContent(self.about, names, self.templates[kept], self.photographs[kept])

    def search(self, features: Tensor, top: int = 5, engine: Engine = "exact") -> list[list[Match]]:
        """For each embedding (N, d) the most similar people, the best first."""
        if not len(self):
            raise DataError("the gallery is empty: enroll somebody first")
        if top < 1:
            raise ConfigError(f"top must be at least 1, got {top}")
        top = min(top, len(self))
        if engine == "faiss":
            return self._named(self._index.search(features, top))
        return self._named(top_k(features, self.templates, top, norms=self._lengths))

    @cached_property
    def _index(self) -> GraphIndex:
        return GraphIndex(self.templates)

    @cached_property
    def _lengths(self) -> Tensor:
        """Measured at the first search, for all that follow."""
        return lengths("the gallery's templates", self.templates)

    def _named(self, found: Matches) -> list[list[Match]]:
        return [
            [Match(self.names[row], score) for row, score in zip(rows, scores, strict=True) if row >= 0]
            for rows, scores in zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        ]


def already(name: str) -> str:
    """What is said of a person who is enrolled already."""
    return f"'{name}' is enrolled already: choose to add photographs or to replace the person"


def names_in(path: Path) -> tuple[str, ...]:
    """Who is enrolled in a file; no one if it is not a gallery. Only its header and its names are read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > LONGEST_HEADER:
                return ()
            start = file.read(length)
            header = json.loads(start)
            if METADATA not in header["__metadata__"]:
                return ()
            begin, end = header["names"]["data_offsets"]
            file.seek(8 + length + begin)
            return _names(file.read(end - begin))
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        return ()


def _header(data: bytes) -> Any:
    """The header of safetensors: its length in eight bytes, then JSON."""
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def _names(data: bytes) -> tuple[str, ...]:
    people = json.loads(data)
    if not isinstance(people, list) or not all(isinstance(name, str) for name in people):
        raise ValueError("its names are not a list of names")
    return tuple(people)
