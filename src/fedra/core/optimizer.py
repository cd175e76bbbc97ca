"""The local optimizer as a function: state in, state out, parameters updated in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedra.core import tree
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError


@dataclass(frozen=True)
class Optimizer:
    """What every local optimizer answers to. Gradients are only read; parameters and state are updated in place."""

    lr: float

    def init(self, params: Params) -> Tree:
        """The state before the first step: fresh for each client and round, never sent."""
        raise TypeError(f"{type(self).__name__} must define init")

    def step(self, params: Params, gradient: Params, state: Tree) -> Tree:
        """One update; returns the new state."""
        raise TypeError(f"{type(self).__name__} must define step")

    def effective_steps(self, steps: int) -> float:
        """How many plain steps of size `lr` along a constant gradient would go as far as `steps` of these."""
        raise ConfigError(
            f"{type(self).__name__} has no effective number of steps, which SCAFFOLD and FedNova divide by: "
            "use the optimizer 'sgd'"
        )


@dataclass(frozen=True)
class Sgd(Optimizer):
    """v <- momentum v + g + weight_decay w;  w <- w - lr v. Weight decay is taken at w, never at a perturbed point."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, params: Params) -> Tree:
        return tree.zeros_like(params) if self.momentum else {}

    @torch.no_grad()
    def step(self, params: Params, gradient: Params, state: Tree) -> Tree:
        for name, slope in gradient.items():
            weight = params[name]
            if self.momentum:
                velocity = state[name].mul_(self.momentum).add_(slope)
                if self.weight_decay:
                    velocity.add_(weight, alpha=self.weight_decay)
                weight.add_(velocity, alpha=-self.lr)
            else:
                if self.weight_decay:
                    weight.mul_(1 - self.lr * self.weight_decay)
                weight.add_(slope, alpha=-self.lr)
        return state

    def effective_steps(self, steps: int) -> float:
        """[K - m (1 - m^K) / (1 - m)] / (1 - m): K for plain SGD (FedNova, eq. for momentum SGD)."""
        m = self.momentum
        return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction (Kingma and Ba 2015); weight decay is added to the gradient."""

    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, params: Params) -> Tree:
        some = next(iter(params.values()))
        return {
            "mean": tree.zeros_like(params),
            "square": tree.zeros_like(params),
            "steps": torch.zeros((), dtype=some.dtype, device=some.device),
        }

    @torch.no_grad()
    def step(self, params: Params, gradient: Params, state: Tree) -> Tree:
        steps = state["steps"] + 1
        for name, slope in gradient.items():
            weight = params[name]
            if self.weight_decay:
                slope = slope.add(weight, alpha=self.weight_decay)
            mean = state["mean"][name].mul_(self.beta1).add_(slope, alpha=1 - self.beta1)
            square = state["square"][name].mul_(self.beta2).add_(slope * slope, alpha=1 - self.beta2)
            spread = (square / (1 - self.beta2**steps)).sqrt_().add_(self.epsilon)
            weight.sub_(self.lr / (1 - self.beta1**steps) * mean / spread)
        return {**state, "steps": steps}
