"""Combine rules: how the clients' updates are combined. Means are running folds; robust rules store all uploads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedra.core import tree
from fedra.core.capabilities import ReleaseTerms
from fedra.core.model import Weights
from fedra.core.part import Combine
from fedra.core.robust_fold import split_columns
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Upload


class RunningMean(Combine, abstract=True):
    """Base class of means by running sums: the sum of factor * update, divided by the sum of weights.

    A subclass defines `weight`, and `factor` if updates are scaled differently.

    Example:
        >>> class SquareRootMean(RunningMean):
        ...     def weight(self, examples: int) -> float:
        ...         return examples**0.5
        >>> SquareRootMean().weight(16)
        4.0
    """

    def weight(self, examples: int) -> float:
        """Return the weight of a client with this many examples.

        Args:
            examples: Number of the client's training examples.

        Returns:
            What is added to the sum of weights.
        """
        raise TypeError(f"{type(self).__name__} must define weight")

    def factor(self, examples: int, effective_steps: float) -> float:
        """Return the factor of a client's update in the sum; by default its weight.

        Args:
            examples: Number of the client's training examples.
            effective_steps: The client's effective number of local steps.

        Returns:
            The factor.
        """
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
            "counters": _maximum(total.get("counters", {}), counters),
            "weight": total.get("weight", 0) + sum(map(self.weight, uploads.examples)),
            "examples": total.get("examples", 0) + sum(uploads.examples),
        }

    def released_change(self, total: Params, clients: float, terms: ReleaseTerms) -> Params:
        return tree.scale(total, 1 / clients)

    def finish(self, total: Tree) -> Weights:
        tracked: Params = tree.scale(total["tracked"], 1 / total["examples"])
        return Weights(tree.scale(total["delta"], 1 / total["weight"]), {**tracked, **total["counters"]})


@dataclass(frozen=True)
class WeightedMean(RunningMean):
    """The mean weighted by the clients' numbers of examples (FedAvg, McMahan et al., AISTATS 2017).

    Example:
        >>> from fedra.parts import Algorithm, CrossEntropy
        >>> Algorithm(objective=(CrossEntropy(),), combine=WeightedMean()).combine.name
        'weighted-mean'
    """

    formula: ClassVar[str] = "w_g + sum_k n_k (w_k - w_g) / sum_k n_k"
    is_plain: ClassVar[bool] = True

    def weight(self, examples: int) -> float:
        return examples


@dataclass(frozen=True)
class PlainMean(RunningMean):
    """The mean in which every client has the same weight (the uniform 1/|S| of FedSoL's algorithm 1).

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(PlainMean()).combine.name
        'plain-mean'
    """

    formula: ClassVar[str] = "w_g + 1/|S| sum_k (w_k - w_g)"

    def weight(self, examples: int) -> float:
        return 1


@dataclass(frozen=True)
class Median(Combine):
    """The median of each coordinate (Yin et al., ICML 2018). It stores all uploads of a round.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(Median()).combine.name
        'median'
    """

    formula: ClassVar[str] = "w_g + median_k (w_k - w_g), per coordinate"
    robust: ClassVar[bool] = True

    def center(self, values: Tensor) -> Tensor:
        return _median(values)

    def add(self, total: Tree, upload: Upload) -> Tree:
        return _append(total, upload)

    def finish(self, total: Tree) -> Weights:
        return Weights(combine_each(total["deltas"], self.center), combine_each(total["tracked"], self.center))


@dataclass(frozen=True)
class TrimmedMean(Combine):
    """The mean of each coordinate without its largest and smallest values (Yin et al., ICML 2018).

    It stores all uploads of a round.

    Args:
        trim: Share of the clients that is left out at either end; 0 is the plain mean.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(TrimmedMean(trim=0.2)).combine.trim
        0.2
    """

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    formula: ClassVar[str] = "w_g + mean of (w_k - w_g) without the `trim` share at both ends, per coordinate"
    robust: ClassVar[bool] = True

    def caution(self, clients: int) -> str | None:
        if not self.trim or int(self.trim * clients):
            return None
        return (
            f"trimmed-mean leaves out no client: trim = {self.trim:g} of {clients} clients in a round is less than 1, "
            f"so a single wrong upload moves the mean; set trim to at least {1 / clients:.3g}"
            + ("" if clients > 2 else ", with more than 2 clients in a round")
        )

    def add(self, total: Tree, upload: Upload) -> Tree:
        return _append(total, upload)

    def finish(self, total: Tree) -> Weights:
        return Weights(combine_each(total["deltas"], self.center), combine_each(total["tracked"], self.center))

    def center(self, values: Tensor) -> Tensor:
        cut = int(self.trim * len(values))
        return sort_clients(values)[cut : len(values) - cut].mean(dim=0)


def sort_clients(values: Tensor) -> Tensor:
    """Sort each coordinate over the clients.

    On the CPU, transposed blocks are sorted by NumPy's vectorized sort, which is many times faster than a sort along
    the first dimension and gives the same values.

    Args:
        values: A stack (n, ...) of tensors.

    Returns:
        The stack with every coordinate in ascending order.

    Example:
        >>> sort_clients(torch.tensor([[2.0], [1.0]])).flatten().tolist()
        [1.0, 2.0]
    """
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return values.sort(dim=0).values
    flat = values.reshape(len(values), -1)
    ordered = torch.empty_like(flat)
    for part in split_columns(flat.shape[1]):
        block = flat[:, part].T.contiguous().numpy()
        block.sort(axis=1)
        ordered[:, part] = torch.from_numpy(block).T
    return ordered.view_as(values)


def _maximum(left: Params, right: Params) -> Params:
    return {name: torch.maximum(left.get(name, value), value) for name, value in right.items()}


def _append(total: Tree, upload: Upload) -> Tree:
    return {
        "deltas": [*total.get("deltas", []), upload.delta],
        "tracked": [*total.get("tracked", []), upload.buffers],
    }


def combine_each(values: Sequence[Params], rule: Callable[[Tensor], Tensor]) -> Params:
    """Apply a rule to each coordinate over the clients; integer counters take the maximum.

    Args:
        values: Tensors by name, the same names for each client.
        rule: From a stack (n, d) to the result (d,), coordinate by coordinate.

    Returns:
        The results by name.

    Example:
        >>> combine_each([{"a": torch.ones(2)}, {"a": torch.zeros(2)}], lambda stack: stack.mean(dim=0))["a"].tolist()
        [0.5, 0.5]
    """
    return {name: _combine_blocks([value[name] for value in values], rule) for name in values[0]}


def _combine_blocks(values: Sequence[Tensor], rule: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a rule to each coordinate, in blocks, so no stack of whole tensors is needed."""
    if not values[0].is_floating_point():
        return torch.stack(list(values)).amax(dim=0)
    rows = [value.reshape(-1) for value in values]
    found = torch.empty_like(rows[0])
    for part in split_columns(len(found)):
        found[part] = rule(torch.stack([row[part] for row in rows]))
    return found.view(values[0].shape)


def _median(values: Tensor) -> Tensor:
    """Return the middle value, or the mean of the two middle values."""
    ordered = sort_clients(values)
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2
