"""Local steps that are differentially private by themselves: the client's key, and what is drawn from it.

The key is a secret of one client and round. It travels with the client's state and is not kept, so a worker process
never sees the run's secret. Batches are sampled and noise is added here, outside of vmap, equally in all runners.
"""

from __future__ import annotations

import torch

from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ClientState
from fedra.core.model import Weights
from fedra.core.part import GradientRule
from fedra.core.secret_numbers import SIZE, Secret
from fedra.core.tree import Params, Tree
from fedra.core.view import Local
from fedra.errors import ConfigError

KEY = "key"
"""Name of the key in the state of the part."""


class PrivateSteps(GradientRule, ClientState, abstract=True):
    """Base class: the outermost gradient rule, which bounds what one example contributes to a local step.

    A subclass defines `gradient` and `noise_deviation`. Noise is added to what `gradient` returns; terms that read no
    data are added at the weights themselves, as weight decay is.
    """

    works_centralized = True

    def noise_deviation(self, examples: int) -> float:
        """The standard deviation of the noise on the gradient of a step.

        Args:
            examples: Number of the client's examples, which is public.

        Returns:
            The deviation; 0 adds no noise.
        """
        raise TypeError(f"{type(self).__name__} must define noise_deviation")

    def init_client(self, origin: Weights) -> Tree:
        return {KEY: torch.zeros(SIZE, dtype=torch.uint8)}

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {}, {}


def private_steps(algorithm: Algorithm) -> PrivateSteps | None:
    """The rule that makes the algorithm's local steps private, if it has one."""
    first = algorithm.gradient[0] if algorithm.gradient else None
    return first if isinstance(first, PrivateSteps) else None


def with_key(algorithm: Algorithm, memory: Tree, secret: Secret) -> Tree:
    """A client's state with its key for one round, if its local steps are private."""
    rule = private_steps(algorithm)
    if rule is None:
        return memory
    return {**memory, rule.name: {KEY: torch.tensor(list(secret.data), dtype=torch.uint8)}}


def client_secret(algorithm: Algorithm, memory: Tree) -> Secret | None:
    """The key in a client's state, if its local steps are private."""
    rule = private_steps(algorithm)
    if rule is None:
        return None
    key = memory.get(rule.name, {}).get(KEY)
    if key is None or not key.any():
        raise ConfigError(
            f"the part '{rule.name}' must be run with [privacy] level = 'example', which provides its secret: set it "
            "in the configuration in place of the part"
        )
    return Secret(bytes(key.tolist()))


def add_noise(algorithm: Algorithm, gradient: Params, secret: Secret | None, step: int, examples: int) -> None:
    """Add a local step's noise to its gradient, in place."""
    rule = private_steps(algorithm)
    deviation = 0.0 if rule is None else rule.noise_deviation(examples)
    if not deviation or secret is None:
        return
    noise = secret.normals(sum(value.numel() for value in gradient.values()), "step", step)
    pieces = torch.split(noise, [value.numel() for value in gradient.values()])
    for value, piece in zip(gradient.values(), pieces, strict=True):
        value.add_(piece.view(value.shape).to(value), alpha=deviation)
