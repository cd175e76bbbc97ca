"""The parts of an algorithm, one base class per slot. What else a part can do is in `capabilities`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedra.core.capabilities import HOOKS, ReleaseTerms
from fedra.core.model import Output, Weights
from fedra.core.part_homes import PART_HOMES
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Server, Upload, View
from fedra.errors import ConfigError
from fedra.registry import class_fields, validate_value

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm

GradientFunction = Callable[[Params], Params]
"""From parameters to the gradient at them."""

_KNOWN: dict[str, type[Part]] = {}
"""Every part class by name; defining a class registers it."""


def known_parts() -> dict[str, type[Part]]:
    """All part classes, built-in and user-defined.

    Returns:
        The classes by the name that a configuration uses.

    Example:
        ```python
        known_parts()["cross-entropy"]  # <class 'fedra.parts.objective.CrossEntropy'>
        ```
    """
    for name in PART_HOMES:
        find_part(name)
    return dict(_KNOWN)


def find_part(name: str) -> type[Part] | None:
    """Return the part class of this name, and import its module if it is built in; None if there is none."""
    if name not in _KNOWN and name in PART_HOMES:
        importlib.import_module(PART_HOMES[name])
    return _KNOWN.get(name)


@dataclass(frozen=True)
class Part:
    """One reusable piece of an algorithm. Its fields are hyper-parameters, and its methods are pure.

    `name`, by default the class name in kebab case, is its name in configurations and the key of its state; `formula`
    is shown in the documentation. Parts inherit from the class of their slot, such as `Term`, not from `Part` itself.

    Example:
        ```python
        @dataclass(frozen=True)
        class WeightNorm(Term):  # named "weight-norm"
            strength: float = 0.01
            formula: ClassVar[str] = "strength ||w||^2"
        ```
    """

    name: ClassVar[str] = "part"
    formula: ClassVar[str] = ""

    def __init_subclass__(cls, abstract: bool = False, name: str | None = None) -> None:
        """Name the class, and register it unless it is abstract."""
        cls.name = name or re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        _check_hooks(cls)
        if not abstract:
            _register(cls)

    def __post_init__(self) -> None:
        """Check every field against its annotation."""
        for name, known in class_fields(type(self)).items():
            validate_value(f"the part '{self.name}'", known, getattr(self, name))

    @property
    def mixes_examples(self) -> bool:
        """Whether the part compares the examples of a batch, so that one example alone means nothing to it."""
        return False

    @property
    def uses_label_counts(self) -> bool:
        """Whether the part's loss depends on how many examples of each class the client has."""
        return False

    def nested(self) -> tuple[Part, ...]:
        """The parts among this part's fields."""
        values = (getattr(self, item.name) for item in fields(self))
        return tuple(value for value in values if isinstance(value, Part))

    def check(self, algorithm: Algorithm) -> None:
        """Raise `ConfigError` if the part does not work in this algorithm.

        Args:
            algorithm: The algorithm that contains the part.
        """


def _check_hooks(kind: type[Part]) -> None:
    """Raise if the class defines a method of a capability that it does not inherit: it would never be called."""
    for name in vars(kind).keys() & HOOKS.keys():
        capability = HOOKS[name]
        if not issubclass(kind, capability):
            bases = ", ".join([*(base.__name__ for base in kind.__bases__), capability.__name__])
            raise ConfigError(
                f"a part that defines {name} must inherit from {capability.__name__}, got {kind.__name__} without it: "
                f"write class {kind.__name__}({bases}), or rename the method"
            )


def _register(kind: type[Part]) -> None:
    """Register a part class by name. Redefining the same class, as in a notebook, replaces it."""
    present = find_part(kind.name)
    if present and (present.__module__, present.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ConfigError(
            f"names of parts must be unique, got '{kind.name}' for {kind.__module__}.{kind.__qualname__} and "
            f"{present.__module__}.{present.__qualname__}: rename the class, or set its name with "
            f'class {kind.__name__}(..., name="...")'
        )
    _KNOWN[kind.name] = kind


class Term(Part, abstract=True):
    """A term of the local objective. Subclasses define `loss`.

    Class attributes: `fits_labels` marks a label loss, such as a margin softmax. `is_plain` marks the cross-entropy of
    FedAvg, which any other label loss replaces when algorithms are combined. A `closed_form` term depends only on the
    parameters and defines `add_gradient`, so it needs no autograd graph.

    Example:
        ```python
        @dataclass(frozen=True)
        class FeatureNorm(Term):
            strength: float = 0.01

            def loss(self, output, params, view):
                return self.strength * view.batch.mean(output.features.square().sum(dim=1))

        algorithm = fedra.algorithms.fedavg().plus(FeatureNorm(0.1))
        ```
    """

    fits_labels: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False
    moves_head: ClassVar[bool] = True  # whether its gradient with respect to the head can be nonzero

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        """The mean loss on the batch; of a closed-form term, its value at `params`.

        Args:
            output: Features and logits of the batch.
            params: The parameters at which the loss is taken.
            view: The local step.

        Returns:
            A scalar tensor.
        """
        raise TypeError(f"{type(self).__name__} must define loss")

    def scalar_loss(self, output: Output, params: Params, view: View) -> Tensor:
        """`loss`, checked to be a scalar.

        Args:
            output: Features and logits of the batch.
            params: The parameters at which the loss is taken.
            view: The local step.

        Returns:
            A scalar tensor.

        Raises:
            ConfigError: If `loss` returns anything else.
        """
        loss = self.loss(output, params, view)
        if isinstance(loss, Tensor) and not loss.dim():
            return loss
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"loss of the part '{self.name}' must return a scalar, got {got}: average with view.batch.mean"
        )

    def add_gradient(self, gradient: Params, params: Params, view: View) -> None:
        """Add the gradient of a closed-form term in place.

        Args:
            gradient: The gradient so far; only its names are trained.
            params: The parameters at which the gradient is taken.
            view: The local step.
        """
        raise TypeError(f"{type(self).__name__} is not a closed-form term")


class GradientRule(Part, abstract=True):
    """Transforms the gradient function: where the gradient is taken and how it is corrected.

    Example:
        ```python
        class Sign(GradientRule):
            def gradient(self, inner, params, view):
                return {name: value.sign() for name, value in inner(params).items()}
        ```
    """

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        """The gradient for the optimizer step.

        Args:
            inner: The gradient function of the objective and all rules inside this one.
            params: The parameters before the step.
            view: The local step.

        Returns:
            Gradients by parameter name.
        """
        raise TypeError(f"{type(self).__name__} must define gradient")


class Combine(Part, abstract=True):
    """Combines uploads into one change of the global model, as a running fold.

    `is_plain` marks the rule of FedAvg, which any other rule replaces when algorithms are combined. A `robust` rule
    defines `center`; parts that collect uploads then see the center of all uploads in place of each of them.

    Example:
        ```python
        class Sum(Combine):
            def add(self, total, upload):
                delta = tree.accumulate(total.get("delta", {}), upload.delta)
                return {"delta": delta, "buffers": upload.buffers}

            def finish(self, total):
                return Weights(total["delta"], total["buffers"])
        ```
    """

    is_plain: ClassVar[bool] = False
    robust: ClassVar[bool] = False

    def center(self, values: Tensor) -> Tensor:
        """The value that a robust rule takes for all clients.

        Args:
            values: One value per client, along the first dimension.

        Returns:
            The center, without that dimension.
        """
        raise TypeError(f"{type(self).__name__} must define center")

    def caution(self, clients: int) -> str | None:
        """What a user should know of the rule with this many clients in a round.

        Args:
            clients: The number of clients in a round.

        Returns:
            A sentence, or None.
        """
        return None

    def start(self) -> Tree:
        """The total before the first upload."""
        return {}

    def add(self, total: Tree, upload: Upload) -> Tree:
        """Fold in one upload.

        Args:
            total: The total so far.
            upload: One client's upload.

        Returns:
            The new total.
        """
        raise TypeError(f"{type(self).__name__} must define add")

    def add_stack(self, total: Tree, uploads: Uploads) -> Tree:
        """Fold in a stack of uploads; override it if there is a faster way than one by one.

        Args:
            total: The total so far.
            uploads: The uploads of several clients.

        Returns:
            The new total.
        """
        for upload in uploads:
            total = self.add(total, upload)
        return total

    @property
    def sums(self) -> bool:
        """Whether the rule needs only a sum over clients: `released_change` is defined."""
        return type(self).released_change is not Combine.released_change

    def update_summands(self, uploads: Uploads) -> Params:
        """Each client's contribution to a sum in which privacy or secure aggregation hide the clients.

        Args:
            uploads: The uploads of several clients.

        Returns:
            Tensors with a leading client dimension.
        """
        return uploads.delta

    def released_change(self, total: Params, clients: float, terms: ReleaseTerms) -> Params:
        """The change of the global model, from the released sum of `update_summands`.

        Args:
            total: The released sum.
            clients: The number of clients, or the sum of their weights.
            terms: What is public about the round.

        Returns:
            The change of the parameters.
        """
        raise ConfigError(
            f"the combine rule '{self.name}' needs every upload by itself, so neither noise on a sum nor secure "
            "aggregation fits it: use weighted-mean, or remove [privacy] and [secure]"
        )

    def finish(self, total: Tree) -> Weights:
        """The result of the fold.

        Args:
            total: The total after the last upload.

        Returns:
            The combined change of the parameters, and the combined buffers.
        """
        raise TypeError(f"{type(self).__name__} must define finish")


class ServerRule(Part, abstract=True):
    """A server update after the uploads are combined.

    Example:
        ```python
        @dataclass(frozen=True)
        class ServerStep(ServerRule):
            lr: float = 0.5

            def update(self, before, server, population):
                change = tree.subtract(server.weights.params, before.weights.params)
                return server.with_params(tree.add(before.weights.params, change, self.lr))
        ```
    """

    def update(self, before: Server, server: Server, population: Population) -> Server:
        """The server after this rule.

        Args:
            before: The server at the start of the round.
            server: The server after the combine rule and the previous server rules.
            population: All clients of the federation.

        Returns:
            The new server.
        """
        raise TypeError(f"{type(self).__name__} must define update")


class StartRule(Part, abstract=True):
    """Sets the initial weights of the global model.

    Example:
        ```python
        class ZeroHead(StartRule):
            def init_weights(self, params, draw):
                return {name: value * 0 if name.startswith("head.") else value for name, value in params.items()}
        ```
    """

    def init_weights(self, params: Params, draw: torch.Generator) -> Params:
        """The initial parameters, before any data are used.

        Args:
            params: The module's parameters.
            draw: Random generator of this rule.

        Returns:
            The parameters to start from.
        """
        return params
