"""Gradient rules: where the gradient is taken and how it is corrected. Rules nest, the first is the outermost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.part import GradientFunction, GradientRule, Part, Term
from fedra.core.step_views import iterate_chunks
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.errors import ConfigError
from fedra.registry import Positive, Strength

TINY = 1e-12
Scope = Literal["all", "head", "body"]


class Radius(Part, abstract=True):
    """Base class: the shape of the ball in which weights are perturbed. A subclass defines `direction`.

    Example:
        >>> from fedra.parts import tree
        >>> class SignRadius(Radius):
        ...     def direction(self, gradient, params, view):
        ...         return {name: value.sign() for name, value in gradient.items()}, tree.norm(gradient)
        >>> Perturb(rho=0.1, radius=SignRadius()).radius.name
        'sign-radius'
    """

    def direction(self, gradient: Params, params: Params, view: View) -> tuple[Params, Tensor]:
        """Return the perturbation before its length is set, and the length that `rho` is divided by.

        Args:
            gradient: The gradient to perturb along.
            params: The client's current parameters.
            view: What the part can read of the local step.

        Returns:
            The direction, which may be changed in place afterward, and its length.
        """
        raise TypeError(f"{type(self).__name__} must define direction")


@dataclass(frozen=True)
class FixedRadius(Radius):
    """A Euclidean ball: the same radius for every parameter.

    Example:
        >>> Perturb(rho=0.1, radius=FixedRadius()).radius.formula
        'eps = rho g / ||g||'
    """

    formula: ClassVar[str] = "eps = rho g / ||g||"

    def direction(self, gradient: Params, params: Params, view: View) -> tuple[Params, Tensor]:
        return gradient, tree.norm(gradient)


@dataclass(frozen=True)
class Perturb(GradientRule):
    """Takes the inner gradient at perturbed weights, as SAM and FedSoL do.

    Args:
        rho: Radius of the perturbation; 0 does not perturb.
        along: The term whose gradient gives the direction (FedSoL); None (the default) is the objective itself (SAM).
        radius: Shape of the ball.
        scope: Perturb "all" weights, only the "head" or only the "body".
        floor: Length of the direction at or below which nothing is perturbed, because it is rounding noise.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(Perturb(rho=0.05)).gradient[0].rho
        0.05
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
                f"scope must be 'all' or 'body' for a perturbation along '{self.along.name}', got 'head': the gradient "
                "of that term with respect to the head is zero"
            )
        if self.scope != "all" and algorithm.freezes(f"{self.scope}."):
            raise ConfigError(
                f"scope of a perturbation must name trained parameters, got '{self.scope}', which is frozen: use "
                "another scope, or freeze less"
            )

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        perturbation = self.perturbation(inner, params, view)
        view.track(params)  # running statistics: a closed-form `along` runs no forward pass at `params`
        return inner(tree.add(params, perturbation))

    def perturbation(self, inner: GradientFunction, params: Params, view: View) -> Params:
        """Return eps over the parameters of `scope`; no gradient flows through it.

        Args:
            inner: The gradient function of everything inside this rule.
            params: The client's current parameters.
            view: What the part can read of the local step.

        Returns:
            The perturbation by parameter name.
        """
        if self.along is not None:
            gradient = view.gradient([self.along], params, self.scope)
        else:
            gradient = tree.select(inner(params), view.names(self.scope))
        with torch.no_grad():
            direction, length = self.radius.direction(gradient, params, view)
            factor = torch.where(length > self.floor, self.rho / length.clamp(min=TINY), 0.0)
            if view.functional:  # under vmap a tensor may be expanded from one number, which in-place ops cannot write
                return tree.scale(direction, factor)
            return {name: value.mul_(factor) for name, value in direction.items()}


@dataclass(frozen=True)
class AlsoDescend(GradientRule):
    """Adds the gradient of another term, taken at the weights themselves or `through` another rule.

    Args:
        term: The term.
        weight: Weight of its gradient.
        through: A gradient rule that is applied to the term's gradient; None (the default) applies none.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> from fedra.algorithms.fedprox import Proximal
        >>> fedavg().plus(AlsoDescend(Proximal(mu=0.1))).gradient[0].term.name
        'proximal'
    """

    term: Term
    weight: Strength = 1.0
    through: GradientRule | None = None
    formula: ClassVar[str] = "g(w) -> g(w) + weight * grad term(w)  [the latter through `through`]"

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        def term_gradient(at: Params) -> Params:
            return view.gradient([self.term], at)

        # The inner gradient first: the first pass sets the step's training loss and buffers.
        gradient = inner(params)
        other = term_gradient(params) if self.through is None else self.through.gradient(term_gradient, params, view)
        return tree.add(gradient, other, self.weight)


@dataclass(frozen=True)
class Clip(GradientRule):
    """Clips the gradient to a Euclidean norm.

    Args:
        norm: The largest norm.

    Example:
        >>> from fedra.algorithms import fedavg
        >>> fedavg().plus(Clip(norm=1.0)).gradient[0].norm
        1.0
    """

    norm: Positive = 10.0
    formula: ClassVar[str] = "g -> g min(1, norm / ||g||)"

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        gradient = inner(params)
        return tree.scale(gradient, (self.norm / tree.norm(gradient).clamp(min=TINY)).clamp(max=1.0))


@dataclass(frozen=True)
class Accumulate(GradientRule):
    """Accumulates the gradient over chunks of the batch, so a large batch fits into memory.

    The mean of the chunks' gradients, weighted by examples, equals the whole batch's gradient if the loss is a mean
    over examples. Anything that uses the batch as a whole sees a chunk instead: batch normalization uses a chunk's
    statistics, and its running statistics move with every chunk. It must be the innermost gradient rule, the last in
    the list.

    Args:
        passes: Number of chunks, of nearly equal size.

    Example:
        >>> from fedra.algorithms import fedsam
        >>> [rule.name for rule in fedsam().plus(Accumulate(passes=4)).gradient]
        ['perturb', 'accumulate']
    """

    passes: Annotated[int, Field(ge=1)] = 2
    formula: ClassVar[str] = "g(w) -> sum_p n_p / n g_p(w),  g_p the gradient on the p-th of `passes` chunks"

    @property
    def mixes_examples(self) -> bool:
        return True

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.gradient[-1:] != (self,):
            last = f"list it after '{algorithm.gradient[-1].name}'" if algorithm.gradient else "add it to the slot"
            raise ConfigError(
                "the part 'accumulate' must be the last gradient rule, because a rule inside it would see one chunk of "
                f"the batch at a time: {last}"
            )

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        total: Params = {}
        for share in iterate_chunks(view, self.passes):
            gradient = inner(params)
            total = tree.add(total, gradient, share) if total else tree.scale(gradient, share)
        return total
