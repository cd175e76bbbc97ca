"""Gradient rules: at which point the gradient is taken, and how it is corrected. They nest, outermost first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.part import GradientFunction, GradientRule, Part, Term
from fedra.core.portions import portions
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.errors import ConfigError
from fedra.registry import Positive, Strength

TINY = 1e-12
Scope = Literal["all", "head", "body"]


class Radius(Part, abstract=True):
    """The shape of the ball in which the weights are perturbed."""

    def direction(self, gradient: Params, params: Params, view: View) -> tuple[Params, Tensor]:
        """The perturbation before its length is set, and the length that `rho` is divided by."""
        raise TypeError(f"{type(self).__name__} must define direction")


@dataclass(frozen=True)
class FixedRadius(Radius):
    """A Euclidean ball: the same radius for every parameter."""

    formula: ClassVar[str] = "eps = rho g / ||g||"

    def direction(self, gradient: Params, params: Params, view: View) -> tuple[Params, Tensor]:
        return gradient, tree.norm(gradient)


@dataclass(frozen=True)
class Perturb(GradientRule):
    """Takes the inner gradient at weights perturbed along a direction: up the objective itself (SAM), or along
    any term's gradient (FedSoL). Below `floor` the direction is rounding noise and nothing is perturbed.
    """

    rho: Strength = 0.1
    along: Term | None = None
    radius: Radius = FixedRadius()
    scope: Scope = "all"
    floor: Strength = 0.0
    formula: ClassVar[str] = "g(w) -> g(w + eps),  eps along the gradient of `along` (of the objective if none)"

    def check(self, algorithm: Algorithm) -> None:
        if self.scope == "head" and self.along is not None and not self.along.moves_head:
            raise ConfigError(
                f"a head-only perturbation along '{self.along.name}' would be exactly no perturbation, because "
                "that term's gradient with respect to the head is zero: use scope 'all' or 'body'"
            )
        if self.scope != "all" and algorithm.freezes(f"{self.scope}."):
            raise ConfigError(
                f"scope '{self.scope}' would perturb nothing, because the {self.scope} is frozen: perturb what is "
                "trained, or freeze less"
            )

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        perturbation = self.perturbation(inner, params, view)
        view.track(params)  # a closed-form `along` makes no pass of its own
        return inner(tree.add(params, perturbation))

    def perturbation(self, inner: GradientFunction, params: Params, view: View) -> Params:
        """eps, over the parameters of `scope`; no gradient flows through it."""
        if self.along is not None:
            slope = view.gradient([self.along], params, self.scope)
        else:
            slope = tree.select(inner(params), view.names(self.scope))
        with torch.no_grad():
            direction, length = self.radius.direction(slope, params, view)
            wanted = torch.where(length > self.floor, self.rho / length.clamp(min=TINY), 0.0)
            if view.functional:  # a transform may hand out one number for a whole tensor
                return tree.scale(direction, wanted)
            return {name: value.mul_(wanted) for name, value in direction.items()}


@dataclass(frozen=True)
class AlsoDescend(GradientRule):
    """Adds the gradient of another term, taken at the weights themselves or `through` another rule."""

    term: Term
    weight: Strength = 1.0
    through: GradientRule | None = None
    formula: ClassVar[str] = "g(w) -> g(w) + weight * grad term(w)  [the latter through `through`]"

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        def of_term(at: Params) -> Params:
            return view.gradient([self.term], at)

        # The inner gradient first: the step's training loss and buffers are the objective's.
        slope = inner(params)
        other = of_term(params) if self.through is None else self.through.gradient(of_term, params, view)
        return tree.add(slope, other, self.weight)


@dataclass(frozen=True)
class Clip(GradientRule):
    """Shortens the gradient to a given Euclidean norm."""

    norm: Positive = 10.0
    formula: ClassVar[str] = "g -> g min(1, norm / ||g||)"

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        slope = inner(params)
        return tree.scale(slope, (self.norm / tree.norm(slope).clamp(min=TINY)).clamp(max=1.0))


@dataclass(frozen=True)
class Accumulate(GradientRule):
    """Takes the batch in `passes` nearly equal portions, one after the other, so that a large batch fits into memory.

    The mean of the portions' gradients, each weighted by its examples, is the whole batch's gradient wherever the loss
    is a mean over examples. What looks at a batch as a whole sees a portion in its place: batch normalization takes a
    portion's statistics, and its running ones move with every portion. It stands innermost, last in the list.
    """

    passes: Annotated[int, Field(ge=1)] = 2
    formula: ClassVar[str] = "g(w) -> sum_p n_p / n g_p(w),  g_p the gradient on the p-th of `passes` portions"

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.gradient[-1:] != (self,):
            last = f"list it after '{algorithm.gradient[-1].name}'" if algorithm.gradient else "put it there"
            raise ConfigError(
                "the part 'accumulate' must be the last of the gradient rules, because a rule inside it would act on "
                f"every portion by itself: {last}"
            )

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        total: Params = {}
        for share in portions(view, self.passes):
            slope = inner(params)
            total = tree.add(total, slope, share) if total else tree.scale(slope, share)
        return total
