"""Gradients of single examples of a batch: each goes alone through everything inside a gradient rule."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import vmap

from fedra.core import tree
from fedra.core.model import Output
from fedra.core.part import GradientFunction
from fedra.core.step_views import iterate_chunks, overwrite
from fedra.core.tree import Params, Tree
from fedra.core.view import Trace, View


def iterate_examples(
    inner: GradientFunction, params: Params, view: View, chunk: int
) -> Iterator[tuple[Params, Tensor | None]]:
    """Yield the gradients of a few examples at a time, stacked, and which of them are real, not padding (None: all).

    With `chunk` 1 an example takes a pass by itself, which also works inside vmap; otherwise a chunk is one pass with
    vmap. Afterward the view's trace has the mean loss and logs of the batch.
    """
    mask = view.batch.mask
    if chunk > 1:
        yield from _iterate_stacks(inner, params, view, chunk)
        return
    for row, _ in enumerate(iterate_chunks(view, len(view.batch.targets))):
        real = None if mask is None else mask[row : row + 1] > 0
        yield {name: value.unsqueeze(0) for name, value in inner(params).items()}, real


def _iterate_stacks(
    inner: GradientFunction, params: Params, view: View, chunk: int
) -> Iterator[tuple[Params, Tensor | None]]:
    whole, count = copy.copy(view), len(view.batch.targets)
    fixed = {name: value.detach() for name, value in params.items()}
    losses: list[Tensor] = []
    logs: list[Params] = []
    held: dict[str, bool | Tensor] = {}

    def alone(one: Tree) -> tuple[Params, Tensor, Params]:
        """One example, seen from inside vmap."""
        batch = replace(whole.batch, index=None, mask=None, **tree.each(one["batch"], lambda v: v.unsqueeze(0)))
        teachers = {
            part: {name: Output(*(value.unsqueeze(0) for value in output)) for name, output in own.items()}
            for part, own in one["teachers"].items()
        }
        overwrite(view, replace(whole, batch=batch, teachers=teachers, functional=True, trace=Trace(), _cached=None))
        gradient, trace = inner(fixed), view.trace
        held.update(trace.held)
        assert trace.loss is not None, "the objective records its loss"
        return gradient, trace.loss, trace.logs

    try:
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            gradients, loss, logged = vmap(alone, randomness="different")(_rows(whole, rows))
            overwrite(view, whole)
            losses.append(loss)
            logs.append(logged)
            yield gradients, None if whole.batch.mask is None else whole.batch.mask[rows] > 0
    finally:
        overwrite(view, whole)
    mean = whole.batch.mean
    view.trace.loss, view.trace.buffers = mean(torch.cat(losses)), view.buffers
    view.trace.held |= held
    view.trace.logs |= {name: mean(torch.cat([one[name] for one in logs])) for name in logs[0]}


def _rows(whole: View, rows: slice) -> Tree:
    """What differs between the examples of a chunk."""
    batch = whole.batch
    return {
        "batch": {
            "inputs": batch.inputs[rows],
            "targets": batch.targets[rows],
            "drawn": tree.each(batch.drawn, lambda value: value[rows]),
        },
        "teachers": {
            part: {name: tuple(value[rows] for value in output) for name, output in own.items()}
            for part, own in whole.teachers.items()
        },
    }
