"""Poisson batches: every example is in a batch with the same probability, independently of all others."""

from __future__ import annotations

import hashlib

import numpy as np

from fedra.core.local_training import LocalTraining
from fedra.core.secret_numbers import SIZE, Secret


class PoissonBatches:
    """The rows of a client's batches in one round.

    Args:
        local: How the client trains; its batch size is the expected one.
        examples: Number of the client's examples.
        where: Seed, round and client.
        secret: Where private batches come from, in place of the seed.
    """

    def __init__(self, local: LocalTraining, examples: int, where: tuple[int, int, int], secret: Secret | None) -> None:
        self._examples, self._rate = examples, local.sampling_rate(examples)
        self.steps = local.steps(examples)
        self.steps_per_epoch = self.steps // local.epochs
        self._secret = secret or _seeded(*where)

    def rows(self, step: int) -> np.ndarray:
        """The rows of a step in ascending order; the batch may be empty."""
        if self._rate == 1:
            return np.arange(self._examples)
        return np.flatnonzero(self._secret.uniforms(self._examples, "batch", step) < self._rate)


def _seeded(seed: int, round: int, client: int) -> Secret:
    """The source of batches that are not private."""
    text = f"{seed}/batches/{round}/{client}".encode()
    return Secret(hashlib.blake2b(text, digest_size=SIZE).digest())
