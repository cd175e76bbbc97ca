"""Per-FedAvg: a global model that adapts to a client in one gradient step.

Fallah et al., "Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning approach",
NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.optimizer import Sgd
from fedra.core.part import GradientFunction, GradientRule
from fedra.core.step_views import halves, restrict_batch
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.parts.personalize import FineTune, Stages
from fedra.registry import Positive


@dataclass(frozen=True)
class MetaStep(GradientRule):
    """Takes the gradient after a plain step on other examples (Per-FedAvg, Fallah et al., NeurIPS 2020).

    The batch's first, third, fifth ... examples are A, the others B; a single example is both. The step is taken on A,
    the gradient after it on B.

    Args:
        order: How to treat the exact gradient's factor I - a H_A(w): "first" drops it; "hessian-free" computes the
            product with the Hessian from two more gradients on A.
        inner_lr: Learning rate a of the step, for all parameters; None (the default) uses the local optimizer's current
            ones.
        delta: Step size of the difference quotient of "hessian-free".
    """

    order: Literal["first", "hessian-free"] = "first"
    inner_lr: Positive | None = None
    delta: Positive = 1e-3
    formula: ClassVar[str] = (
        "g(w) -> u = g_B(w - a g_A(w))  [hessian-free: u - a (g_A(w + delta u) - g_A(w - delta u)) / (2 delta)]"
    )

    @property
    def mixes_examples(self) -> bool:
        return True

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        first, second = halves(view.batch)
        optimizer = view.client.optimizer if self.inner_lr is None else Sgd(self.inner_lr)
        with restrict_batch(view, first):
            stepped = tree.add(params, optimizer.apply_factors(inner(params)), -optimizer.lr)
        with restrict_batch(view, second):
            gradient = inner(stepped)
        if self.order == "first":
            return gradient
        with restrict_batch(view, first):
            along = optimizer.apply_factors(gradient)
            forward = inner(tree.add(params, along, self.delta))
            backward = inner(tree.add(params, along, -self.delta))
        return tree.add(gradient, tree.subtract(forward, backward), -optimizer.lr / (2 * self.delta))


def per_fedavg(
    *,
    order: Literal["first", "hessian-free"] = "first",
    inner_lr: Positive | None = None,
    delta: Positive = 1e-3,
    epochs: Stages = 1,
) -> Algorithm:
    """Minimizes the loss after one plain gradient step; clients then personalize by such steps.

    Half of every batch takes the step, the other half evaluates it. The outer step is the local optimizer's, with its
    momentum and weight decay; personalization uses neither.

    Args:
        order: "first" for the first-order approximation, or "hessian-free" for a difference quotient.
        inner_lr: Learning rate of the inner step; None (the default) is the local optimizer's current one.
        delta: Step size of the difference quotient.
        epochs: Epochs of personalization after the last round; several numbers are each evaluated.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> per_fedavg(order="hessian-free", inner_lr=0.01).gradient[0].order
        'hessian-free'
    """
    fine_tuning = FineTune(epochs, lr=inner_lr, plain=True)
    return fedavg().plus(MetaStep(order, inner_lr, delta), fine_tuning)
