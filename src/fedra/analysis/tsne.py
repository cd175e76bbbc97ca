"""t-SNE of embeddings (van der Maaten and Hinton 2008): points in the plane that preserve neighborhoods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedra.analysis.embeddings import Embeddings
from fedra.core.evaluate import ignore_progress
from fedra.core.random import key
from fedra.errors import ConfigError

ITERATIONS = (250, 500)
"""Iterations with early exaggeration, and after it."""

REPORT_EVERY = 10
STEPS = sum(ITERATIONS)
"""The total that `done` of `tsne` adds up to."""


def tsne(
    embeddings: Embeddings,
    *,
    perplexity: float = 30.0,
    seed: int = 0,
    start: NDArray[np.float64] | None = None,
    done: Callable[[int], None] = ignore_progress,
) -> NDArray[np.float64]:
    """Return the t-SNE positions of embeddings, bitwise the same for the same seed and machine.

    Embeddings are normalized, so close points have a small angle. It needs the extra 'tsne' (openTSNE).

    Args:
        embeddings: The embeddings.
        perplexity: The effective number of neighbors; at most a third of the number of embeddings.
        seed: Seed of the initial positions.
        start: Initial positions (N, 2), scaled down first; by default those of the two principal components. Maps of
            the same examples by several models have a common layout if all start from the first.
        done: Called with the number of finished iterations; their total is `STEPS`.

    Returns:
        Positions (N, 2).
    """
    try:
        from openTSNE import TSNE
        from openTSNE.initialization import rescale
    except ImportError:
        raise ConfigError("openTSNE must be installed for t-SNE: pip install 'fedra[tsne]'") from None
    if len(embeddings) < 3 * perplexity + 1:
        most = (len(embeddings) - 1) // 3
        raise ConfigError(
            f"t-SNE with perplexity {perplexity:g} must have at least {3 * perplexity + 1:.0f} examples, got "
            f"{len(embeddings)}: add more, or set --perplexity to at most {most}"
        )

    def report_progress(iteration: int, error: float, points: Any) -> bool:
        done(REPORT_EVERY)
        return False

    found = TSNE(
        perplexity=perplexity,
        early_exaggeration_iter=ITERATIONS[0],
        n_iter=ITERATIONS[1],
        neighbors="exact",
        initialization="pca" if start is None else rescale(np.array(start, dtype=np.float64)),
        random_state=key(seed, "tsne") % 2**32,
        callbacks=report_progress,
        callbacks_every_iters=REPORT_EVERY,
    ).fit(embeddings.normalized().features.cpu().double().numpy())
    return np.asarray(found, dtype=np.float64)
