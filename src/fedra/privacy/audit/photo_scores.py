"""Membership of photographs: how sure a model is of an example, alone and against shadow models (LiRA).

Yeom et al., "Privacy risk in machine learning", CSF 2018; Carlini et al., "Membership inference attacks from first
principles", S&P 2022.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedra.core.batches import Examples
from fedra.core.evaluate import evaluation_batches
from fedra.core.model import Model, Weights
from fedra.errors import ConfigError

OWN_VARIANCE = 16
"""Shadow models without an example from which on its own variance is used instead of that of all examples."""


@torch.no_grad()
def score_examples(model: Model, weights: Weights, examples: Examples) -> np.ndarray:
    """The log-odds of the true class of each example, log p / (1 - p), which falls as the loss rises.

    Args:
        model: The model.
        weights: Its weights.
        examples: The examples with their global labels.

    Returns:
        A float64 array (n,). A threshold on it is a threshold on the loss, without its rounding near zero.
    """
    found = []
    for start, end in evaluation_batches(len(examples)):
        inputs, targets = examples.ready(model, start, end)
        found.append(_log_odds(model.output(weights, inputs).logits.double().cpu(), targets.cpu()))
    scores = torch.cat(found).numpy()
    if not np.isfinite(scores).all():
        raise ConfigError("the model's outputs must be finite to be audited, got NaN or infinity: train another model")
    return scores


def _log_odds(logits: Tensor, targets: Tensor) -> Tensor:
    if logits.shape[1] < 2:
        raise ConfigError(f"membership of photographs needs at least two classes, got {logits.shape[1]}")
    rows = torch.arange(len(targets))
    others = logits.clone()
    others[rows, targets] = -torch.inf
    return logits[rows, targets] - torch.logsumexp(others, dim=1)


def score_against_shadows(scores: np.ndarray, shadows: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Offline LiRA: how far a score lies above those of models that were trained without the example.

    Args:
        scores: Log-odds under the attacked model (n,).
        shadows: Log-odds under each shadow model (k, n).
        held_out: Whether the shadow model was trained without the example (k, n).

    Returns:
        One number per example, higher for members: the distance in standard deviations. With fewer than 16 shadow
        models without an example, the deviation is that of all examples.

    Example:
        >>> score_against_shadows(np.array([3.0]), np.array([[1.0], [0.0]]), np.array([[True], [True]])) > 0
        array([ True])
    """
    counts = held_out.sum(axis=0)
    if not len(shadows) or counts.min() < 1:
        raise ConfigError("every example needs a shadow model that was trained without it, got none for some")
    kept = np.where(held_out, shadows, 0.0)
    means = kept.sum(axis=0) / counts
    squares = (np.where(held_out, shadows - means, 0.0) ** 2).sum(axis=0)
    freedom = counts - 1
    pooled = squares.sum() / max(freedom.sum(), 1)
    own = squares / np.maximum(freedom, 1)
    variances = np.where(counts >= OWN_VARIANCE, own, pooled)
    floor = max(float(pooled), 1e-12) * 1e-3
    result: np.ndarray = (scores - means) / np.sqrt(np.maximum(variances, floor))
    return result


def split_pairs(pairs: int, shadow: int, seed: int) -> np.ndarray:
    """Which of each pair of examples a shadow model is trained on.

    Shadow models come in couples that train on opposite halves, so every example is left out by exactly half of them.

    Args:
        pairs: Number of pairs of a member and another example.
        shadow: Number of the shadow model, from 0.
        seed: Seed of the audit.

    Returns:
        True where it trains on the member, False where on the other example.

    Example:
        >>> bool((split_pairs(8, 0, seed=1) == ~split_pairs(8, 1, seed=1)).all())
        True
    """
    from fedra.core.random import generator

    first = torch.rand(pairs, generator=generator(seed, "audit shadow", shadow // 2)).numpy() < 0.5
    return first if shadow % 2 == 0 else ~first
