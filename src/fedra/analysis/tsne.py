"""t-SNE of embeddings (van der Maaten and Hinton 2008): points in the plane whose neighbors are the features'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedra.analysis.embeddings import Embeddings
from fedra.core.evaluate import nobody
from fedra.core.random import key
from fedra.errors import ConfigError

ITERATIONS = (250, 500)
"""With early exaggeration, and after it."""

TOLD_EVERY = 10
STEPS = sum(ITERATIONS)
"""What the `done` of `tsne` adds up to."""


def tsne(
    embeddings: Embeddings, *, perplexity: float = 30.0, seed: int = 0, done: Callable[[int], None] = nobody
) -> NDArray[np.float64]:
    """(N, 2): where t-SNE puts the directions of the features; the same bits for the same seed and machine.

    Features are brought to unit length, so that near means a small angle. Needs the extra 'tsne' (openTSNE).
    """
    try:
        from openTSNE import TSNE
    except ImportError:
        raise ConfigError("t-SNE needs the package openTSNE: pip install 'fedra[tsne]'") from None
    if len(embeddings) < 3 * perplexity + 1:
        most = (len(embeddings) - 1) // 3
        raise ConfigError(
            f"t-SNE with perplexity {perplexity:g} needs {3 * perplexity + 1:.0f} examples or more, not "
            f"{len(embeddings)}: give more, or set --perplexity to at most {most}"
        )

    def told(iteration: int, error: float, points: Any) -> bool:
        done(TOLD_EVERY)
        return False

    found = TSNE(
        perplexity=perplexity,
        early_exaggeration_iter=ITERATIONS[0],
        n_iter=ITERATIONS[1],
        neighbors="exact",
        random_state=key(seed, "tsne") % 2**32,
        callbacks=told,
        callbacks_every_iters=TOLD_EVERY,
    ).fit(embeddings.normalized().features.cpu().double().numpy())
    return np.asarray(found, dtype=np.float64)
