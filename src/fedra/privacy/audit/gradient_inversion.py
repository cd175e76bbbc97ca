"""Gradient inversion: what the update of one step says about the examples behind it.

Geiping et al., "Inverting gradients: how easy is it to break privacy in federated learning?", NeurIPS 2020. An example
that passes through a dense first layer alone is read off exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedra.core.evaluate import ignore_progress
from fedra.core.tree import Params
from fedra.privacy.audit.row_inversion import total_variation

Gradient = Callable[[Tensor], Params]
"""From inputs in 0..1 to the gradient of their loss by parameter name, differentiable."""
RATE = 0.1
"""First step size of signed Adam, in pixel values; it falls to a tenth."""
SMOOTHNESS = 1e-2
"""Weight of the total variation against one minus the cosine of gradients."""
LARGEST_PSNR = 60.0
"""PSNR in dB that counts as exact."""


def invert_gradient(
    gradient: Gradient,
    target: Params,
    shape: tuple[int, ...],
    draw: torch.Generator,
    steps: int = 300,
    done: Callable[[int], None] = ignore_progress,
) -> Tensor:
    """Search inputs whose gradient points in the direction of a known one.

    Args:
        gradient: The gradient as a function of the inputs.
        target: The gradient that was sent; only its names are compared.
        shape: Shape of all inputs, the number of examples first.
        draw: Where the start comes from.
        steps: Number of steps.
        done: Called with the number of finished steps.

    Returns:
        Inputs in 0..1.

    Example:
        ```python
        picture = invert_gradient(gradient, sent, (1, 3, 32, 32), torch.Generator().manual_seed(0))
        ```
    """
    wanted = _flat(target)
    wanted = wanted / wanted.norm().clamp(min=1e-30)
    inputs = (0.5 + 0.1 * torch.randn(shape, generator=draw)).to(wanted).clamp_(0, 1).requires_grad_()
    optimizer = torch.optim.Adam([inputs], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=RATE / 10)
    for _ in range(steps):
        found = _flat({name: value for name, value in gradient(inputs).items() if name in target})
        match = 1 - (found * wanted).sum() / found.norm().clamp(min=1e-30)
        smooth = total_variation(inputs).mean() if inputs.dim() == 4 else inputs.new_zeros(())
        (step,) = torch.autograd.grad(match + SMOOTHNESS * smooth, [inputs])
        inputs.grad = step.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            inputs.clamp_(0, 1)
        done(1)
    return inputs.detach()


def _flat(values: Params) -> Tensor:
    return torch.cat([values[name].flatten() for name in sorted(values)])


def read_off_dense_layer(target: Params, length: int) -> Tensor | None:
    """Read an example off the gradient of a dense first layer, exactly: weight gradient over bias gradient.

    Args:
        target: The gradient of one example by parameter name.
        length: Number of values of the example.

    Returns:
        The prepared input (length,), or None without such a layer or with a gradient of zero.

    Example:
        >>> sent = {"body.0.weight": torch.tensor([[2.0, 4.0]]), "body.0.bias": torch.tensor([2.0])}
        >>> read_off_dense_layer(sent, 2)
        tensor([1., 2.])
    """
    for name, weight in target.items():
        bias = target.get(f"{name.removesuffix('weight')}bias") if name.endswith("weight") else None
        if bias is not None and weight.dim() == 2 and weight.shape[1] == length:
            row = int(bias.abs().argmax())
            if float(bias[row].abs()) > 0:
                return weight[row] / bias[row]
            return None
    return None


def psnr(found: Tensor, truth: Tensor) -> np.ndarray:
    """The peak signal-to-noise ratio of each picture in dB, for values in 0..1; 60 dB counts as exact.

    Args:
        found: Pictures (n, ...).
        truth: The pictures that they should show.

    Returns:
        One number per picture.

    Example:
        >>> psnr(torch.zeros(1, 4), torch.full((1, 4), 0.1)).round(3)
        array([20.])
    """
    errors = (found.double() - truth.double()).square().flatten(1).mean(dim=1).clamp(min=10 ** (-LARGEST_PSNR / 10))
    return np.array([-10 * math.log10(error) for error in errors.tolist()])


def match_pictures(found: Tensor, truth: Tensor) -> Tensor:
    """The found pictures in the order of the true ones: a gradient says nothing about the order in a batch.

    Args:
        found: Pictures (n, ...).
        truth: The true pictures (n, ...).

    Returns:
        The found pictures in the order with the smallest error.
    """
    from scipy.optimize import linear_sum_assignment

    errors = torch.cdist(truth.double().flatten(1), found.double().flatten(1)).square().cpu().numpy()
    order = torch.from_numpy(linear_sum_assignment(errors)[1])
    return found[order]


def clip_and_noise(sent: Params, clip: float, noise: float, draw: torch.Generator) -> Params:
    """What a private mean releases of an upload if all other uploads are known: clipped, with the noise of the sum.

    Args:
        sent: The upload by parameter name.
        clip: The clip norm.
        noise: Standard deviation of the noise over the clip norm.
        draw: Where the noise comes from.

    Returns:
        The noised upload.
    """
    length = float(torch.sqrt(sum((value.double().square().sum() for value in sent.values()), torch.zeros(()))))
    factor = min(1.0, clip / max(length, 1e-30))
    return {
        name: value * factor + noise * clip * torch.randn(value.shape, generator=draw).to(value)
        for name, value in sent.items()
    }
