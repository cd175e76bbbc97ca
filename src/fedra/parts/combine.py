"""Combine rules: how the clients' changes become one. Each is a running fold, robust ones excepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedra.core import tree
from fedra.core.model import Weights
from fedra.core.part import Combine
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Upload


class RunningMean(Combine, abstract=True):
    """A mean by running sums: a change counts `factor` times in the sum that is divided by the sum of `weight`."""

    def weight(self, examples: int) -> float:
        """How much a client counts."""
        raise TypeError(f"{type(self).__name__} must define weight")

    def factor(self, examples: int, effective_steps: float) -> float:
        """What its change is multiplied by."""
        return self.weight(examples)

    def add(self, total: Tree, upload: Upload) -> Tree:
        return self.add_stack(total, Uploads.of(upload))

    def add_stack(self, total: Tree, uploads: Uploads) -> Tree:
        factors = list(map(self.factor, uploads.examples, uploads.effective_steps))
        tracked = {name: value for name, value in uploads.buffers.items() if value.is_floating_point()}
        counters = {name: v.amax(dim=0) for name, v in uploads.buffers.items() if not v.is_floating_point()}
        return {
            "delta": tree.accumulate_stack(total.get("delta", {}), uploads.delta, factors),
            "tracked": tree.accumulate_stack(total.get("tracked", {}), tracked, uploads.examples),
            "counters": _largest(total.get("counters", {}), counters),
            "weight": total.get("weight", 0) + sum(map(self.weight, uploads.examples)),
            "examples": total.get("examples", 0) + sum(uploads.examples),
        }

    def finish(self, total: Tree) -> Weights:
        tracked: Params = tree.scale(total["tracked"], 1 / total["examples"])
        return Weights(tree.scale(total["delta"], 1 / total["weight"]), {**tracked, **total["counters"]})


@dataclass(frozen=True)
class WeightedMean(RunningMean):
    """The mean weighted by the clients' numbers of examples (FedAvg, McMahan et al., AISTATS 2017)."""

    formula: ClassVar[str] = "w_g + sum_k n_k (w_k - w_g) / sum_k n_k"
    is_plain: ClassVar[bool] = True

    def weight(self, examples: int) -> float:
        return examples


@dataclass(frozen=True)
class PlainMean(RunningMean):
    """The mean in which every client counts the same (the uniform 1/|S| of FedSoL's algorithm 1)."""

    formula: ClassVar[str] = "w_g + 1/|S| sum_k (w_k - w_g)"

    def weight(self, examples: int) -> float:
        return 1


@dataclass(frozen=True)
class Median(Combine):
    """The median of each coordinate (Yin et al., ICML 2018). It needs all uploads at once."""

    formula: ClassVar[str] = "w_g + median_k (w_k - w_g), per coordinate"

    def add(self, total: Tree, upload: Upload) -> Tree:
        return _keep(total, upload)

    def finish(self, total: Tree) -> Weights:
        return Weights(_each(total["deltas"], _median), _each(total["tracked"], _median))


@dataclass(frozen=True)
class TrimmedMean(Combine):
    """The mean of each coordinate without its largest and smallest values (Yin et al., ICML 2018)."""

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    formula: ClassVar[str] = "w_g + mean of (w_k - w_g) without the `trim` share at both ends, per coordinate"

    def add(self, total: Tree, upload: Upload) -> Tree:
        return _keep(total, upload)

    def finish(self, total: Tree) -> Weights:
        return Weights(_each(total["deltas"], self._mean), _each(total["tracked"], self._mean))

    def _mean(self, values: Tensor) -> Tensor:
        cut = int(self.trim * len(values))
        return values.sort(dim=0).values[cut : len(values) - cut].mean(dim=0)


def _largest(left: Params, right: Params) -> Params:
    return {name: torch.maximum(left.get(name, value), value) for name, value in right.items()}


def _keep(total: Tree, upload: Upload) -> Tree:
    return {
        "deltas": [*total.get("deltas", []), upload.delta],
        "tracked": [*total.get("tracked", []), upload.buffers],
    }


def _each(values: list[Params], rule: Callable[[Tensor], Tensor]) -> Params:
    """The rule over the clients, name by name; counters take the largest."""
    stacks = {name: torch.stack([value[name] for value in values]) for name in values[0]}
    return {name: rule(s) if s.is_floating_point() else s.amax(dim=0) for name, s in stacks.items()}


def _median(values: Tensor) -> Tensor:
    """The middle value, or the mean of the two middle ones."""
    ordered = values.sort(dim=0).values
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2
