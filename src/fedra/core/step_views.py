"""Other views of a local step: its batch in chunks or halves, or at other weights."""

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
from fedra.core.random import preserve_rng
from fedra.core.tree import Params, Tree
from fedra.core.view import Batch, Trace, View

Pick = Callable[[Tensor], Tensor]
"""Selects rows of a batch."""


def iterate_chunks(view: View, passes: int) -> Iterator[float | Tensor]:
    """Restrict `view` to one chunk of its batch after another, and yield each chunk's share of the examples.

    Running statistics and carried state pass from chunk to chunk, as if each were a step. Afterward the view has the
    whole batch again, with the mean loss and logs of the chunks.
    """
    whole, buffers, carried = copy.copy(view), view.buffers, view.carried
    traces: list[tuple[float | Tensor, Trace]] = []
    try:
        for start, end in _chunk_ranges(len(view.batch.targets), passes):
            overwrite(view, _chunk(whole, start, end, buffers, carried))
            share = _share(whole, start, end)
            yield share
            traces.append((share, view.trace))
            buffers = buffers if view.trace.buffers is None else view.trace.buffers
            carried = carried | view.trace.carried
    finally:
        overwrite(view, whole)
    _merge(view.trace, traces, carried)


def gradient_at(view: View, terms: Sequence[Term], weights: Weights) -> tuple[Params, Params]:
    """The gradient of `terms` at other weights, and their running statistics after the pass.

    It changes neither the step's trace nor the random state of dropout layers.
    """
    other = replace(view, buffers=weights.buffers, trace=Trace(), _cached=None)
    with preserve_rng(view.batch.inputs.device):
        return other.gradient(terms, weights.params), other.trace.buffers or {}


@contextmanager
def restrict_batch(view: View, pick: Pick) -> Iterator[None]:
    """Restrict `view` to the selected examples of its batch inside the block; the step's trace continues."""
    whole = copy.copy(view)
    overwrite(view, _select(whole, pick))
    try:
        yield
    finally:
        whole.trace = view.trace
        overwrite(view, whole)


def halves(batch: Batch) -> tuple[Pick, Pick]:
    """Select the first, third, ... and the second, fourth, ... examples; a single example is in both halves.

    Padding is at the end, so both halves get the same share of it and a stacked client has the same halves as alone.
    """

    def second(rows: Tensor) -> Tensor:
        if len(rows) == 1:
            return rows
        if batch.mask is None:
            return rows[1::2]
        return torch.cat([torch.where(batch.mask[1] > 0, rows[1:2], rows[:1]), rows[3::2]])

    return lambda rows: rows[::2], second


def overwrite(view: View, other: View) -> None:
    """Copy all fields of `other` into `view`: the gradient functions of a step hold a reference to its view."""
    vars(view).update(vars(other))


def _chunk_ranges(examples: int, passes: int) -> list[tuple[int, int]]:
    """Start and end of each chunk; sizes differ by at most one, and no chunk is empty."""
    passes = min(passes, examples)
    ends = [examples * number // passes for number in range(passes + 1)]
    return list(pairwise(ends))


def _chunk(whole: View, start: int, end: int, buffers: Params, carried: Tree) -> View:
    chunk = _select(whole, lambda rows: rows[start:end])
    return replace(chunk, buffers=buffers, carried=carried, trace=Trace())


def _select(whole: View, pick: Pick) -> View:
    """The view with the selected examples of the batch."""
    teachers = {
        part: {name: Output(*map(pick, output)) for name, output in own.items()} for part, own in whole.teachers.items()
    }
    batch = whole.batch
    selected = replace(
        batch,
        inputs=pick(batch.inputs),
        targets=pick(batch.targets),
        index=None if batch.index is None else pick(batch.index),
        mask=None if batch.mask is None else pick(batch.mask),
        drawn=tree.each(batch.drawn, pick),
    )
    return replace(whole, batch=selected, teachers=teachers, _cached=None)


def _share(whole: View, start: int, end: int) -> float | Tensor:
    """The chunk's share of the batch's examples, without padding."""
    mask = whole.batch.mask
    if mask is None:
        return (end - start) / len(whole.batch.targets)
    return mask[start:end].sum() / mask.sum().clamp(min=1)


def _merge(trace: Trace, traces: list[tuple[float | Tensor, Trace]], carried: Tree) -> None:
    """Merge the chunks' traces into the step's trace; of several passes the first counts."""
    losses = [share * own.loss for share, own in traces if own.loss is not None]
    if trace.loss is None and losses:
        trace.loss = torch.stack(losses).sum()
    if trace.buffers is None:
        trace.buffers = traces[-1][1].buffers
    trace.carried = {name: carried[name] for _, own in traces for name in own.carried} | trace.carried
    trace.held |= traces[0][1].held
    for name in traces[0][1].logs:
        trace.logs[name] = torch.stack([share * own.logs[name] for share, own in traces]).sum()
