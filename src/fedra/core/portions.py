"""A step seen otherwise: its batch in portions or halves, or at weights other than the model's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from fedra.core import tree
from fedra.core.model import Output, Weights
from fedra.core.part import Term
from fedra.core.random import unmoved
from fedra.core.tree import Params, Tree
from fedra.core.view import Batch, Trace, View

Pick = Callable[[Tensor], Tensor]
"""Some of the rows of a batch."""


def portions(view: View, passes: int) -> Iterator[float | Tensor]:
    """Let `view` show one portion of its batch after the other, and hand out each portion's share of the examples.

    Running statistics and what parts carry go on from portion to portion, as if each were a step. Afterward the view
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


def aside(view: View, terms: Sequence[Term], weights: Weights) -> tuple[Params, Params]:
    """The gradient of `terms` at weights other than the model's, and their running statistics after the pass.

    The step bears no trace of it, and dropout layers draw afterward what they would have drawn without it.
    """
    other = replace(view, buffers=weights.buffers, trace=Trace(), _kept=None)
    with unmoved(view.batch.inputs.device):
        return other.gradient(terms, weights.params), other.trace.buffers or {}


@contextmanager
def showing(view: View, pick: Pick) -> Iterator[None]:
    """Let `view` show the picked examples of its batch inside the block; the step's trace goes on."""
    whole = copy.copy(view)
    become(view, _picked(whole, pick))
    try:
        yield
    finally:
        whole.trace = view.trace
        become(view, whole)


def halves(batch: Batch) -> tuple[Pick, Pick]:
    """The first, third, fifth ... example and the second, fourth, sixth ...; a single example is in both.

    Padding, which stands at the end, falls to both halves alike, so that a stack has every client's own halves.
    """

    def second(rows: Tensor) -> Tensor:
        if len(rows) == 1:
            return rows
        if batch.mask is None:
            return rows[1::2]
        return torch.cat([torch.where(batch.mask[1] > 0, rows[1:2], rows[:1]), rows[3::2]])

    return lambda rows: rows[::2], second


def become(view: View, other: View) -> None:
    """Show what `other` shows: the gradient functions around a step hold on to its one view."""
    vars(view).update(vars(other))


def _cuts(examples: int, passes: int) -> list[tuple[int, int]]:
    """Start and end of each portion; sizes differ by one at most, and none is empty."""
    passes = min(passes, examples)
    ends = [examples * number // passes for number in range(passes + 1)]
    return list(pairwise(ends))


def _portion(whole: View, start: int, end: int, buffers: Params, carried: Tree) -> View:
    portion = _picked(whole, lambda rows: rows[start:end])
    return replace(portion, buffers=buffers, carried=carried, trace=Trace())


def _picked(whole: View, pick: Pick) -> View:
    """The view of some of the batch's examples."""
    teachers = {
        part: {name: Output(*map(pick, output)) for name, output in own.items()} for part, own in whole.teachers.items()
    }
    batch = whole.batch
    some = replace(
        batch,
        inputs=pick(batch.inputs),
        targets=pick(batch.targets),
        index=None if batch.index is None else pick(batch.index),
        mask=None if batch.mask is None else pick(batch.mask),
        drawn=tree.each(batch.drawn, pick),
    )
    return replace(whole, batch=some, teachers=teachers, _kept=None)


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
