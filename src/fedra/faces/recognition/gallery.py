"""A gallery: one template for each enrolled person in one safetensors file; never a photograph.

A template is the sum of the embeddings of a person's photographs, of which only the direction counts: photographs can
be added later, and long embeddings, which are those of good photographs, weigh more. The file is replaced by a
rename, so that a kill leaves the old gallery or the new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel
from torch import Tensor

from fedra.errors import ConfigError, DataError, nearest
from fedra.faces.metrics import Matches, top_k
from fedra.faces.metrics.embedding_checks import directions, lengths
from fedra.faces.recognition.gallery_index import GraphIndex
from fedra.faces.recognition.recognizer import ModelSource
from fedra.locking import locked
from fedra.writing import write_atomically

Again = Literal["refuse", "add", "replace"]
"""What becomes of a person who is enrolled already."""
PATIENCE = 60.0
"""Seconds that a change waits for another one, which takes far less than one."""


Engine = Literal["exact", "faiss"]
"""How a gallery is searched."""


class GalleryMetadata(BaseModel):
    """What a gallery says of itself: its model and detector, and the fingerprints of both."""

    version: Literal[1] = 1
    model: ModelSource
    fingerprint: str
    detector: str | None = None
    detector_fingerprint: str | None = None


@dataclass(frozen=True)
class Match:
    """An enrolled person, and how alike the photograph is: the cosine, at most 1."""

    name: str
    score: float


@dataclass(frozen=True, eq=False)
class Gallery:
    """The people of a gallery: names, templates (P, d) and how many photographs each stands for (P,)."""

    about: GalleryMetadata
    names: tuple[str, ...]
    templates: Tensor
    photographs: Tensor

    @classmethod
    def empty(cls, about: GalleryMetadata) -> Gallery:
        """A gallery of nobody."""
        # One empty dimension is the one shape that torch.cat joins with anything.
        return cls(about, (), torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    @classmethod
    def read(cls, path: Path) -> Gallery:
        """The gallery in a file."""
        if not path.is_file():
            raise DataError(f"there is no gallery '{path}': make one with `fedra enrol`")
        try:
            with safetensors.safe_open(str(path), framework="pt") as file:
                about = GalleryMetadata.model_validate_json((file.metadata() or {})["fedra-gallery"])
                names, templates, photographs = (
                    file.get_tensor(name) for name in ("names", "templates", "photographs")
                )
            if (names.dtype, templates.dtype, photographs.dtype) != (torch.uint8, torch.float32, torch.int64):
                raise ValueError("its tensors are of other types")
            people = json.loads(bytes(names.numpy()))
            if not isinstance(people, list) or not all(isinstance(name, str) for name in people):
                raise ValueError("its names are no list of names")
        except (OSError, KeyError, ValueError, RecursionError, safetensors.SafetensorError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"'{path}' is no gallery or is damaged ({reason}): enrol anew into another file") from None
        if templates.dim() != 2 or not [len(people)] == [len(templates)] == list(photographs.shape):
            raise DataError(f"the gallery '{path}' is damaged: its names and templates differ in number")
        return cls(about, tuple(people), templates, photographs)

    def write(self, path: Path) -> None:
        """Put the gallery in place in one step."""
        if path.is_dir():
            raise ConfigError(f"'{path}' is a folder: give a file for the gallery")
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {
            "names": torch.frombuffer(bytearray(json.dumps(self.names).encode()), dtype=torch.uint8),
            "templates": self.templates.contiguous(),
            "photographs": self.photographs,
        }
        write_atomically(path, safetensors.torch.save(tensors, {"fedra-gallery": self.about.model_dump_json()}))

    def __len__(self) -> int:
        return len(self.names)

    def check_model(self, fingerprint: str) -> None:
        """Refuse another model than the one whose templates these are."""
        if fingerprint != self.about.fingerprint:
            raise ConfigError(
                f"the gallery was made by another model ('{self.about.model.path}' as it was then): embeddings of "
                "different models cannot be compared, so give that model or enrol anew"
            )

    def with_people(self, people: dict[str, Tensor], again: Again = "refuse") -> Gallery:
        """The gallery with more people, each by the embeddings (n, d) of their photographs."""
        places = {name: place for place, name in enumerate(self.names)}
        sums, counts = {}, {}
        for name, features in people.items():
            directions(f"the embeddings of '{name}'", features)
            if name in places and again == "refuse":
                raise ConfigError(already(name))
            sums[name], counts[name] = features.float().sum(dim=0), len(features)
        fresh = [name for name in people if name not in places]
        templates = torch.cat([self.templates, *(sums[name][None] for name in fresh)])
        photographs = torch.cat([self.photographs, torch.tensor([counts[name] for name in fresh], dtype=torch.int64)])
        for name in sums.keys() - set(fresh):
            kept = again == "add"
            templates[places[name]] = sums[name] + templates[places[name]] * kept
            photographs[places[name]] = counts[name] + photographs[places[name]] * kept
        return Gallery(self.about, (*self.names, *fresh), templates, photographs)

    def without(self, name: str) -> Gallery:
        """The gallery without a person."""
        if name not in self.names:
            hint = nearest(name, self.names) if self.names else "nobody is"
            raise ConfigError(f"'{name}' is not enrolled: {hint}")
        kept = torch.tensor([place for place, known in enumerate(self.names) if known != name], dtype=torch.int64)
        names = tuple(known for known in self.names if known != name)
        return Gallery(self.about, names, self.templates[kept], self.photographs[kept])

    def search(self, features: Tensor, top: int = 5, engine: Engine = "exact") -> list[list[Match]]:
        """For each embedding (N, d) the most alike people, the best first.

        "exact" looks at everybody, as quick as a matrix product. "faiss" builds an index at the first search, which
        pays off for thousands of searches among very many people, and may miss somebody.
        """
        if not len(self):
            raise DataError("the gallery is empty: enrol people with `fedra enrol`")
        if top < 1:
            raise ConfigError(f"the {top} nearest cannot be found: give 1 or more")
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


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """While the block reads, changes and writes the gallery at that path, all other changes wait: none is lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    busy = (
        f"another program has been changing the gallery '{path}' for {PATIENCE:.0f} s (it holds '{lock}'): end it, "
        "then try again"
    )
    with locked(lock, busy, PATIENCE):
        yield


def already(name: str) -> str:
    """What is said of a person who is enrolled already."""
    return f"'{name}' is enrolled already: --add adds photographs, --replace replaces them"
