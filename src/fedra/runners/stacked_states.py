"""The states of several clients as stacks, so they are stored and recalled with a few large operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, overload, runtime_checkable

import torch

from fedra.core import tree
from fedra.core.tree import Params, Tree
from fedra.core.uploads import are_all


@dataclass(frozen=True)
class StackedTrees(Sequence[Tree]):
    """Equal trees of several clients: tensors by path, with a leading client dimension. Indexing returns views."""

    values: Params
    size: int

    @classmethod
    def of(cls, one: Tree) -> StackedTrees:
        """A stack of one tree."""
        return cls({path: value.unsqueeze(0) for path, value in tree.flatten(one).items()}, 1)

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Tree: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tree]: ...

    def __getitem__(self, index: int | slice) -> Tree | list[Tree]:
        selected = range(self.size)[index]
        if isinstance(selected, range):
            return [self[each] for each in selected]
        return tree.unflatten({path: value[selected] for path, value in self.values.items()})

    def __iter__(self) -> Iterator[Tree]:
        if not self.values:
            return iter([{} for _ in range(self.size)])
        rows = zip(*(value.unbind() for value in self.values.values()), strict=True)
        return (tree.unflatten(dict(zip(self.values, row, strict=True))) for row in rows)

    def select(self, indices: Sequence[int]) -> StackedTrees:
        """A selection of the trees; the stack itself if it is all of them in their own order."""
        if are_all(indices, self.size):
            return self
        rows = torch.tensor(indices, dtype=torch.long)
        return StackedTrees({p: v.index_select(0, rows.to(v.device)) for p, v in self.values.items()}, len(indices))


class StateGroup(NamedTuple):
    """The states of some of the clients that were asked for: their indices among these, and the states in order."""

    indices: Sequence[int]
    states: StackedTrees


@runtime_checkable
class RecallsGroups(Protocol):
    """A function that returns a client's state, and can return those of several clients at once."""

    def groups(self, clients: Sequence[int]) -> list[StateGroup]:
        """Return the states of the clients that have one, in stacks as they are stored."""
        ...


def recall_groups(memory: Callable[[int], Tree], clients: Sequence[int]) -> list[StateGroup]:
    """The states of the clients that have one: stacks as they are stored, or a group for every client."""
    if isinstance(memory, RecallsGroups):
        return memory.groups(clients)
    return recall_each(memory, clients)


def recall_each(memory: Callable[[int], Tree], clients: Sequence[int]) -> list[StateGroup]:
    """The states of the clients that have one, each in a group of its own."""
    found = ((index, StackedTrees.of(memory(client))) for index, client in enumerate(clients))
    return [StateGroup([index], state) for index, state in found if state.values]
