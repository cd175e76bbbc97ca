"""Data rules, the parts that select what a client trains on: its own examples, or public data as well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedra.core.batches import Examples
from fedra.core.evaluate import embed
from fedra.core.model import Model, Weights
from fedra.core.part import Part
from fedra.core.tree import Params
from fedra.errors import ConfigError

if TYPE_CHECKING:
    from fedra.core.algorithm import Algorithm


@dataclass(frozen=True)
class Public:
    """Public data: examples that the server holds and all clients may use. No client has examples of their classes.

    Args:
        examples: The public examples, with labels from 0 to `classes` - 1.
        classes: Number of public classes.

    Example:
        ```python
        public = Public(Examples(images, labels), classes=100)
        ```
    """

    examples: Examples
    classes: int
    _cache: list[tuple[Params, Tensor]] = field(default_factory=list, init=False, repr=False, compare=False)

    def features(self, model: Model, weights: Weights) -> Tensor:
        """The features of all public examples; those of the last body are cached.

        Args:
            model: The model.
            weights: The weights to compute the features with.

        Returns:
            Features (N, d).
        """
        body = {name: value for group in weights for name, value in group.items() if name.startswith("body.")}
        if self._cache and all(torch.equal(value, self._cache[0][0][name]) for name, value in body.items()):
            return self._cache[0][1]
        features = embed(model, weights, self.examples)
        self._cache[:] = [({name: value.clone() for name, value in body.items()}, features)]
        return features


@dataclass(frozen=True, kw_only=True)
class Supply:
    """The examples that a client may train on in a round, and the model that it received.

    Args:
        own: The client's own examples, with labels from 0 to `classes` - 1.
        public: The public data.
        classes: Number of the client's classes.
        model: The model.
        received: The weights that the client received.

    Example:
        ```python
        similarity = F.normalize(supply.public_features()) @ F.normalize(supply.own_features()).T
        ```
    """

    own: Examples
    public: Public
    classes: int
    model: Model
    received: Weights

    def own_features(self) -> Tensor:
        """Features (n, d) of the client's own examples under the received model."""
        return embed(self.model, self.received, self.own)

    def public_features(self) -> Tensor:
        """Features (N, d) of the public examples under the received model."""
        return self.public.features(self.model, self.received)


class DataRule(Part, abstract=True):
    """Selects what a client trains on when there are public data. Subclasses define `examples`.

    Example:
        ```python
        class AllPublic(DataRule):
            def examples(self, supply):
                public = supply.public.examples
                inputs = torch.cat([supply.own.inputs, public.inputs])
                targets = torch.cat([supply.own.targets, public.targets + supply.classes])
                return Examples(inputs, targets, supply.own.transform)
        ```
    """

    def check_public(self, algorithm: Algorithm) -> None:
        """Raise `ConfigError` if the algorithm cannot use public data.

        Args:
            algorithm: The algorithm of the run.
        """

    def first_public(self, features: Tensor, targets: Tensor, classes: int) -> Params:
        """Initial values of parameters, computed on the server from the public data.

        Args:
            features: Features (N, d) of the public examples under the initial model.
            targets: Their labels (N,).
            classes: Number of public classes.

        Returns:
            Initial values by parameter name.
        """
        return {}

    def examples(self, supply: Supply) -> Examples:
        """What a client trains on in a round.

        Args:
            supply: The client's own examples, the public data and the received model.

        Returns:
            The examples; public labels start at `supply.classes`.
        """
        raise TypeError(f"{type(self).__name__} must define examples")


@dataclass(frozen=True)
class OwnData(DataRule):
    """A client trains on its own examples.

    Example:
        ```python
        Algorithm(objective=(CrossEntropy(),), combine=WeightedMean(), data=OwnData())  # the default
        ```
    """

    formula: ClassVar[str] = "D_k"

    def check_public(self, algorithm: Algorithm) -> None:
        raise ConfigError(
            "public data must be used by the algorithm, got one that trains on own examples only: use fedfr, or "
            "remove the public data"
        )

    def examples(self, supply: Supply) -> Examples:
        return supply.own
