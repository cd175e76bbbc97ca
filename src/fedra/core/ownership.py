"""Which client owns which classes, and with them the rows of class vectors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Owners:
    """The sorted classes of each client (`holdings`); a class may have several owners."""

    holdings: Sequence[Tensor]
    classes: int

    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """For each set of owners, its classes and all classes that share an owner with them.

        A class without an owner is related only to itself.
        """
        return iter(self._groups)

    def related(self, anchors: Tensor, columns: Tensor | None) -> Tensor:
        """(anchors, columns): whether the classes share an owner; None selects all classes as columns."""
        group = self._group_of[anchors.cpu()]
        selected = torch.arange(self.classes) if columns is None else columns.cpu()
        index = torch.full((self.classes,), -1).index_copy(0, selected, torch.arange(len(selected)))
        mask = torch.zeros(len(anchors), len(selected), dtype=torch.bool)
        for number in set(group.tolist()):
            lines, related = (group == number).nonzero()[:, 0], index[self._groups[number][1]]
            mask[lines[:, None], related[related >= 0]] = True
        return mask.to(anchors.device)

    def among(self, classes: Tensor) -> Owners:
        """The owners of a subset of the classes, renumbered in the given order."""
        index = torch.full((self.classes,), -1, dtype=torch.int64)
        index[classes.cpu()] = torch.arange(len(classes))
        holdings = [index[own] for own in self.holdings]
        return Owners([own[own >= 0] for own in holdings], len(classes))

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
