"""Which client holds which classes: rows of class embeddings belong to the clients that hold the class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Owners:
    """`holdings` are the sorted classes of each client; a class may have several owners (a shared identity)."""

    holdings: Sequence[Tensor]
    classes: int

    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The classes by their sets of owners: the classes of a set, and all classes related to them.

        Classes are related when they have an owner in common. A class nobody holds is related to itself alone.
        """
        return iter(self._groups)

    def related(self, anchors: Tensor, columns: Tensor | None) -> Tensor:
        """(anchors, columns): whether the classes have an owner in common; None stands for all classes."""
        where = self._group_of[anchors.cpu()]
        shown = torch.arange(self.classes) if columns is None else columns.cpu()
        place = torch.full((self.classes,), -1).index_copy(0, shown, torch.arange(len(shown)))
        mask = torch.zeros(len(anchors), len(shown), dtype=torch.bool)
        for number in set(where.tolist()):
            lines, related = (where == number).nonzero()[:, 0], place[self._groups[number][1]]
            mask[lines[:, None], related[related >= 0]] = True
        return mask.to(anchors.device)

    def among(self, kept: Tensor) -> Owners:
        """The owners of some classes, numbered anew in their order."""
        place = torch.full((self.classes,), -1, dtype=torch.int64)
        place[kept.cpu()] = torch.arange(len(kept))
        holdings = [place[own] for own in self.holdings]
        return Owners([own[own >= 0] for own in holdings], len(kept))

    @cached_property
    def _groups(self) -> list[tuple[Tensor, Tensor]]:
        owners: dict[int, list[int]] = defaultdict(list)
        for client, own in enumerate(self.holdings):
            for label in own.tolist():
                owners[label].append(client)
        members: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for label in range(self.classes):
            members[tuple(owners[label]) or (-1 - label,)].append(label)
        return [
            (
                torch.tensor(labels),
                torch.unique(torch.cat([self.holdings[c] for c in clients]))
                if clients[0] >= 0
                else torch.tensor(labels),
            )
            for clients, labels in members.items()
        ]

    @cached_property
    def _group_of(self) -> Tensor:
        group = torch.empty(self.classes, dtype=torch.int64)
        for number, (labels, _) in enumerate(self._groups):
            group[labels] = number
        return group
