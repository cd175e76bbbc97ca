"""A batch seen portion by portion, for gradients that are gathered over several passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.model import Output
from fedra.core.tree import Params, Tree
from fedra.core.view import Batch, Trace, View


def portions(view: View, passes: int) -> Iterator[float | Tensor]:
    """Let `view` show one portion of its batch after the other, and hand out each portion's share of the examples.

    Running statistics and what parts carry go on from portion to portion, as if each were a step. Afterwards the view
    shows the whole batch again, with the portions' mean loss and mean logs.
    """
    whole, buffers, carried = copy.copy(view), view.buffers, view.carried
    left: list[tuple[float | Tensor, Trace]] = []
    try:
        for start, end in _cuts(len(view.batch.targets), passes):
            become(view, _portion(whole, start, end, buffers, carried))
            share = _share(whole, start, end)
            yield share
            left.append((share, view.trace))
            buffers = buffers if view.trace.buffers is None else view.trace.buffers
            carried = carried | view.trace.carried
    finally:
        become(view, whole)
    _join(view.trace, left, carried)


def become(view: View, other: View) -> None:
    """Show what `other` shows: the gradient functions around a step hold on to its one view."""
    vars(view).update(vars(other))


def _cuts(examples: int, passes: int) -> list[tuple[int, int]]:
    """Start and end of each portion; sizes differ by one at most, and none is empty."""
    passes = min(passes, examples)
    ends = [examples * number // passes for number in range(passes + 1)]
    return list(pairwise(ends))


def _portion(whole: View, start: int, end: int, buffers: Params, carried: Tree) -> View:
    def cut(rows: Tensor) -> Tensor:
        return rows[start:end]

    teachers = {
        part: {name: Output(*map(cut, output)) for name, output in own.items()} for part, own in whole.teachers.items()
    }
    batch = _cut(whole.batch, cut)
    return replace(whole, batch=batch, buffers=buffers, teachers=teachers, carried=carried, trace=Trace(), _kept=None)


def _cut(batch: Batch, cut: Callable[[Tensor], Tensor]) -> Batch:
    index = None if batch.index is None else cut(batch.index)
    mask = None if batch.mask is None else cut(batch.mask)
    return Batch(cut(batch.inputs), cut(batch.targets), index, mask, tree.each(batch.drawn, cut))


def _share(whole: View, start: int, end: int) -> float | Tensor:
    """How much of the batch's examples a portion holds, padding left out."""
    mask = whole.batch.mask
    if mask is None:
        return (end - start) / len(whole.batch.targets)
    return mask[start:end].sum() / mask.sum().clamp(min=1)


def _join(trace: Trace, left: list[tuple[float | Tensor, Trace]], carried: Tree) -> None:
    """Put what the portions left into the step's trace; of several passes the first counts."""
    losses = [share * own.loss for share, own in left if own.loss is not None]
    if trace.loss is None and losses:
        trace.loss = torch.stack(losses).sum()
    if trace.buffers is None:
        trace.buffers = left[-1][1].buffers
    trace.carried = {name: carried[name] for _, own in left for name in own.carried} | trace.carried
    for name in left[0][1].logs:
        trace.logs[name] = torch.stack([share * own.logs[name] for share, own in left]).sum()
