"""FedAvg with an optimizer on the server: FedAvgM, FedAdam, FedYogi, FedAdagrad.

Hsu et al., "Measuring the effects of non-identical data distribution", 2019 (FedAvgM);
Reddi et al., "Adaptive federated optimization", ICLR 2021 (FedAdam, FedYogi, FedAdagrad).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedra.algorithms.fedavg import fedavg
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ServerState
from fedra.core.model import Weights
from fedra.core.part import ServerRule
from fedra.core.tree import Params, Tree
from fedra.core.view import Population, Server
from fedra.registry import Positive, Share


@dataclass(frozen=True)
class ServerSgd(ServerRule, ServerState):
    """A step along the averaged update, with momentum (FedAvgM, Hsu et al., 2019).

    Args:
        lr: Learning rate of the server.
        momentum: Momentum of the server.
    """

    lr: Positive = 1.0
    momentum: Share = 0.9
    formula: ClassVar[str] = "v <- momentum v + D;  w_g <- w_g + lr v   (D = the averaged change)"

    def init_server(self, weights: Weights) -> Tree:
        return {"velocity": tree.zeros_like(weights.params)}

    def update(self, before: Server, server: Server, population: Population) -> Server:
        past = before.memory[self.name]["velocity"]
        start = tree.select(before.weights.params, past)
        velocity = tree.add(tree.subtract(tree.select(server.weights.params, past), start), past, self.momentum)
        moved = server.with_params(server.weights.params | tree.add(start, velocity, self.lr))
        return moved.with_memory(self.name, {"velocity": velocity})


class AdaptiveServer(ServerRule, ServerState, abstract=True):
    """Base class of adaptive server optimizers (FedOpt, Reddi et al., ICLR 2021), which differ in the second moment."""

    lr: float
    beta1: float
    tau: float

    def squares(self, past: Tensor, square: Tensor) -> Tensor:
        """Return the new second moment of one tensor."""
        raise TypeError(f"{type(self).__name__} must define squares")

    def init_server(self, weights: Weights) -> Tree:
        squares = {n: torch.full_like(v, self.tau**2) for n, v in weights.params.items()}
        return {"mean": tree.zeros_like(weights.params), "square": squares}

    def update(self, before: Server, server: Server, population: Population) -> Server:
        memory = before.memory[self.name]
        start = tree.select(before.weights.params, memory["mean"])
        change = tree.subtract(tree.select(server.weights.params, start), start)
        mean = tree.add(tree.scale(memory["mean"], self.beta1), change, 1 - self.beta1)
        square: Params = {n: self.squares(memory["square"][n], v.square()) for n, v in change.items()}
        step = {n: value / (square[n].sqrt() + self.tau) for n, value in mean.items()}
        moved = server.with_params(server.weights.params | tree.add(start, step, self.lr))
        return moved.with_memory(self.name, {"mean": mean, "square": square})


@dataclass(frozen=True)
class ServerAdam(AdaptiveServer):
    """FedAdam: the second moment is an exponential moving average of squares.

    Args:
        lr: Learning rate of the server.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        tau: Added to the denominator; its square is the initial second moment.
    """

    lr: Positive = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3
    formula: ClassVar[str] = "m <- b1 m + (1-b1) D;  v <- b2 v + (1-b2) D^2;  w_g <- w_g + lr m / (sqrt v + tau)"

    def squares(self, past: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * past + (1 - self.beta2) * square


@dataclass(frozen=True)
class ServerYogi(AdaptiveServer):
    """FedYogi: the second moment changes by a bounded amount.

    Args:
        lr: Learning rate of the server.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        tau: Added to the denominator; its square is the initial second moment.
    """

    lr: Positive = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3
    formula: ClassVar[str] = "v <- v - (1-b2) D^2 sign(v - D^2);  else as server-adam"

    def squares(self, past: Tensor, square: Tensor) -> Tensor:
        return past - (1 - self.beta2) * square * torch.sign(past - square)


@dataclass(frozen=True)
class ServerAdagrad(AdaptiveServer):
    """FedAdagrad: the second moment is a sum of squares.

    Args:
        lr: Learning rate of the server.
        beta1: Decay of the first moment.
        tau: Added to the denominator; its square is the initial second moment.
    """

    lr: Positive = 0.01
    beta1: Share = 0.0
    tau: Positive = 1e-3
    formula: ClassVar[str] = "v <- v + D^2;  else as server-adam"

    def squares(self, past: Tensor, square: Tensor) -> Tensor:
        return past + square


def fedavgm(*, lr: Positive = 1.0, momentum: Share = 0.9) -> Algorithm:
    """The server steps along the averaged update with momentum.

    Args:
        lr: Learning rate of the server.
        momentum: Momentum of the server; 0 (with `lr` 1) is FedAvg.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedavgm(momentum=0.5).server[0].momentum
        0.5
    """
    return fedavg().plus(ServerSgd(lr, momentum))


def fedadam(*, lr: Positive = 0.01, beta1: Share = 0.9, beta2: Share = 0.99, tau: Positive = 1e-3) -> Algorithm:
    """The server applies Adam to the averaged update.

    Args:
        lr: Learning rate of the server.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        tau: Added to the denominator; its square is the initial second moment.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedadam(lr=0.1).server[0].name
        'server-adam'
    """
    return fedavg().plus(ServerAdam(lr, beta1, beta2, tau))


def fedyogi(*, lr: Positive = 0.01, beta1: Share = 0.9, beta2: Share = 0.99, tau: Positive = 1e-3) -> Algorithm:
    """The server applies Yogi to the averaged update.

    Args:
        lr: Learning rate of the server.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        tau: Added to the denominator; its square is the initial second moment.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedyogi(lr=0.1).server[0].name
        'server-yogi'
    """
    return fedavg().plus(ServerYogi(lr, beta1, beta2, tau))


def fedadagrad(*, lr: Positive = 0.01, beta1: Share = 0.0, tau: Positive = 1e-3) -> Algorithm:
    """The server applies Adagrad to the averaged update.

    Args:
        lr: Learning rate of the server.
        beta1: Decay of the first moment; 0 (the default) uses the update itself.
        tau: Added to the denominator; its square is the initial second moment.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> fedadagrad(lr=0.1).server[0].name
        'server-adagrad'
    """
    return fedavg().plus(ServerAdagrad(lr, beta1, tau))
