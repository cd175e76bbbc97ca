"""The loss of a model as a function of its weights alone, with gradients and products of its Hessian."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vjp
from torch.nn import functional as F

from fedra.core.batches import Examples
from fedra.core.evaluate import evaluation_batches
from fedra.core.model import Model, Weights
from fedra.core.tree import Params
from fedra.errors import ConfigError, DataError


class GlobalLoss:
    """The mean cross-entropy of a model's outputs over fixed examples, as a function of the model's parameters.

    The model is in evaluation mode: BatchNorm uses its running statistics, which stay fixed, and dropout is off. So
    the loss of an example does not depend on its batch, and neither do the Hessian and the landscape. Margins and
    proximal terms of an algorithm are not part of the loss, so runs of different algorithms are comparable.

    Args:
        model: The model.
        weights: Parameters, at which the Hessian is taken, and buffers.
        examples: The examples; they are prepared once and stay in memory.

    Raises:
        DataError: If there are no examples, or the loss is not finite.

    Example:
        ```python
        loss = GlobalLoss(model, model.weights(), Examples(inputs, targets))
        loss.value(loss.params), loss.product(torch.ones(loss.dimension))
        ```
    """

    def __init__(self, model: Model, weights: Weights, examples: Examples) -> None:
        if not len(examples):
            raise DataError("the loss must have at least one example, got none")
        self._model, self._size = model, len(examples)
        self._batches = [examples.ready(model, start, end) for start, end in evaluation_batches(len(examples))]
        arranged = Weights(model.arrange(weights.params), model.arrange(weights.buffers))
        self.params: Params = arranged.params
        self._buffers = arranged.buffers
        self.dimension = sum(value.numel() for value in self.params.values())
        if not np.isfinite(self.value(self.params)):
            raise DataError("the loss of the model must be finite, got infinity or NaN: the run has diverged")

    @property
    def examples(self) -> int:
        """The number of examples."""
        return self._size

    def value(self, params: Params) -> float:
        """Return the loss at any parameters.

        Args:
            params: Parameters by name.

        Returns:
            The mean cross-entropy; infinite or NaN where the model's outputs are.
        """
        with torch.no_grad():
            losses = [self._batch_loss(params, inputs, targets) for inputs, targets in self._batches]
        return float(torch.stack(losses).double().sum())

    def product(self, vector: Tensor) -> Tensor:
        """Return the product of the Hessian with a vector, by differentiating the gradient.

        Args:
            vector: One entry per parameter, in the order of `flatten`.

        Returns:
            The product, of the same shape.
        """
        direction = self.unflatten(vector)
        total = torch.zeros(self.dimension, dtype=vector.dtype)
        for inputs, targets in self._batches:
            total += self.flatten(self._differentiate_twice(inputs, targets, direction)).to(vector.dtype)
        return total

    def _differentiate_twice(self, inputs: Tensor, targets: Tensor, direction: Params) -> Params:
        gradient = grad(lambda params: self._batch_loss(params, inputs, targets))
        try:
            # The Hessian is symmetric, so pulling a vector back through the gradient multiplies by it.
            pull: Callable[[Params], tuple[Params]] = vjp(gradient, self.params)[1]
            return pull(direction)[0]
        except (NotImplementedError, RuntimeError) as error:
            if "not implemented" not in str(error) and "not support" not in str(error):
                raise
            raise ConfigError(
                "every layer of the model must have a second derivative to measure curvature, got one without: "
                f"{str(error).splitlines()[0]}"
            ) from None

    def _batch_loss(self, params: Params, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self._model.output(Weights(params, self._buffers), inputs).logits
        return F.cross_entropy(logits, targets, reduction="sum") / self._size

    def flatten(self, params: Params) -> Tensor:
        """Return parameters as one vector on the CPU, in the order of `params`."""
        return torch.cat([params[name].detach().reshape(-1).cpu() for name in self.params])

    def unflatten(self, vector: Tensor) -> Params:
        """Return a vector as parameters by name; the inverse of `flatten`."""
        if vector.shape != (self.dimension,):
            raise ConfigError(f"a vector must have {self.dimension:,} entries, got shape {tuple(vector.shape)}")
        found, start = {}, 0
        for name, value in self.params.items():
            own = vector[start : start + value.numel()].reshape(value.shape)
            found[name] = self._model.format(own.to(value.device, value.dtype))
            start += value.numel()
        return found

    def multiply(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `product` for a NumPy vector."""
        return self.product(torch.from_numpy(np.ascontiguousarray(vector))).double().numpy()
