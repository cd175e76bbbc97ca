"""Local optimizers with explicit state; parameters are updated in place."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fedra.core import tree
from fedra.core.tree import Params, Tree
from fedra.errors import ConfigError


@dataclass(frozen=True)
class Optimizer:
    """Base class of local optimizers. Gradients are only read; parameters and state are updated in place.

    Args:
        lr: Learning rate.
        factors: Prefixes of parameter names with factors on their learning rate; the longest matching prefix counts.

    Example:
        ```python
        scale = -1 / (client.optimizer.effective_steps(local.steps) * client.optimizer.lr)
        ```
    """

    lr: float
    factors: tuple[tuple[str, float], ...] = field(default=(), kw_only=True)

    def factor_of(self, name: str) -> float:
        """The factor on the learning rate of a parameter.

        Args:
            name: Name of the parameter.

        Returns:
            The factor of the longest matching prefix; 1.0 without one.
        """
        matching = [pair for pair in self.factors if name.startswith(pair[0])]
        return max(matching, key=lambda pair: len(pair[0]))[1] if matching else 1.0

    def lr_of(self, name: str) -> float:
        """The learning rate of a parameter.

        Args:
            name: Name of the parameter.

        Returns:
            The learning rate times the factor of the parameter.
        """
        return self.lr * self.factor_of(name) if self.factors else self.lr

    def apply_factors(self, values: Params, power: int = 1) -> Params:
        """Scale every entry by the factor of its parameter.

        Args:
            values: Tensors by parameter name.
            power: 1 to multiply, -1 to divide.

        Returns:
            The scaled tensors; `values` itself if all parameters have the same learning rate.
        """
        if not self.factors:
            return values
        return {name: value * self.factor_of(name) ** power for name, value in values.items()}

    def init(self, params: Params) -> Tree:
        """The state before the first step; each client starts every round with a new one.

        Args:
            params: The parameters to train.

        Returns:
            A nested dict of tensors.
        """
        raise TypeError(f"{type(self).__name__} must define init")

    def step(self, params: Params, gradient: Params, state: Tree) -> Tree:
        """Update the parameters in place.

        Args:
            params: The parameters.
            gradient: Gradients by parameter name.
            state: The current state.

        Returns:
            The new state.
        """
        raise TypeError(f"{type(self).__name__} must define step")

    def effective_steps(self, steps: int) -> float:
        """The number of plain SGD steps that would move as far along a constant gradient.

        Args:
            steps: Number of steps of this optimizer.

        Returns:
            The equivalent number of plain steps of size `lr`.

        Raises:
            ConfigError: If the optimizer has no such number.
        """
        raise ConfigError(
            "the optimizer must be 'sgd' for algorithms that divide by the effective number of steps, such as SCAFFOLD "
            f"and FedNova, got {type(self).__name__}"
        )


@dataclass(frozen=True)
class Sgd(Optimizer):
    """v <- momentum v + g + weight_decay w;  w <- w - lr v. Weight decay uses w, not a perturbed point."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, params: Params) -> Tree:
        return tree.zeros_like(params) if self.momentum else {}

    @torch.no_grad()
    def step(self, params: Params, gradient: Params, state: Tree) -> Tree:
        for name, grad in gradient.items():
            weight, lr = params[name], self.lr_of(name)
            if self.momentum:
                velocity = state[name].mul_(self.momentum).add_(grad)
                if self.weight_decay:
                    velocity.add_(weight, alpha=self.weight_decay)
                weight.add_(velocity, alpha=-lr)
            else:
                if self.weight_decay:
                    weight.mul_(1 - lr * self.weight_decay)
                weight.add_(grad, alpha=-lr)
        return state

    def effective_steps(self, steps: int) -> float:
        """[K - m (1 - m^K) / (1 - m)] / (1 - m), which is K for plain SGD (FedNova, eq. for momentum SGD)."""
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
        first = next(iter(params.values()))
        return {
            "mean": tree.zeros_like(params),
            "square": tree.zeros_like(params),
            "steps": torch.zeros((), dtype=first.dtype, device=first.device),
        }

    @torch.no_grad()
    def step(self, params: Params, gradient: Params, state: Tree) -> Tree:
        steps = state["steps"] + 1
        for name, grad in gradient.items():
            weight = params[name]
            if self.weight_decay:
                grad = grad.add(weight, alpha=self.weight_decay)
            mean = state["mean"][name].mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
            square = state["square"][name].mul_(self.beta2).add_(grad * grad, alpha=1 - self.beta2)
            scale = (square / (1 - self.beta2**steps)).sqrt_().add_(self.epsilon)
            weight.sub_(self.lr_of(name) / (1 - self.beta1**steps) * mean / scale)
        return {**state, "steps": steps}
