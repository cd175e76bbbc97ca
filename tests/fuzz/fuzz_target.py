"""A fuzzing target: a reader, the files that it reads, and which of them is mutated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fuzz_formats import Format
from fuzz_oracle import Failure, examine, prepared

CORPUS = Path(__file__).parent / "corpus"
"""Inputs of each target, in a folder of its name: what once failed, and what reached code that seeds do not."""


@dataclass(frozen=True)
class Target:
    """A reader of one file of a folder.

    `files` makes the whole folder as fedra writes it; `file` is the mutated one, and `more` makes other seeds for it.
    A `slow` reader takes a noticeable part of a second.
    """

    name: str
    file: str
    form: Format
    files: Callable[[], Mapping[str, bytes]]
    read: Callable[[Path], object]
    more: Callable[[], Sequence[bytes]] = tuple
    slow: bool = False

    @cached_property
    def seeds(self) -> list[bytes]:
        """Inputs as fedra or the authors of a data set write them."""
        return [self.files()[self.file], *self.more()]

    @cached_property
    def corpus(self) -> list[bytes]:
        """Inputs that are kept in the tree."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*"))]

    @contextmanager
    def session(self) -> Iterator[Callable[[bytes], Failure | None]]:
        """A function that examines one input after the other in one folder."""
        with prepared(self.files()) as folder:

            def examine_input(data: bytes) -> Failure | None:
                (folder / self.file).write_bytes(data)
                return examine(self.read, folder)

            yield examine_input
