"""Correlated noise for clients that take turns: banded matrix factorization (Choquette-Choo et al., NeurIPS 2023).

The rounds X, one row each, are released as X + C^-1 Z with independent normals Z. This is post-processing of C X + Z,
so the guarantee is that of a Gaussian mechanism with the sensitivity of C X. C is lower triangular and Toeplitz with b
diagonals and columns of length at most one. The columns of rounds that are at least b apart have no row in common, so a
client that takes part in p such rounds moves C X by at most sqrt(p) clip norms. The noise of a round cancels part of
the noise before it, so there is less of it in the sum of the rounds, which is the model.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from torch import Tensor

from fedra.privacy.secret import Secret


def band_diagonals(band: int) -> np.ndarray:
    """Return the diagonals of C: the first coefficients of 1 / sqrt(1 - x), scaled to length one.

    Args:
        band: Number of diagonals.

    Returns:
        A float64 array whose first number is the main diagonal.

    Example:
        >>> (band_diagonals(4) / band_diagonals(4)[0]).tolist()
        [1.0, 0.5, 0.375, 0.3125]
    """
    steps = np.arange(1, band)
    diagonals = np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])
    return np.asarray(diagonals / np.linalg.norm(diagonals))


def inverse_diagonals(band: int, rounds: int) -> np.ndarray:
    """Return the diagonals of C^-1: the weights of the normals of this round and the rounds before it.

    Args:
        band: Number of diagonals of C.
        rounds: Number of rounds.

    Returns:
        A float64 array (rounds,).

    Example:
        >>> inverse_diagonals(1, 3).tolist()
        [1.0, 0.0, 0.0]
    """
    from scipy.signal import lfilter

    impulse = np.zeros(rounds)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], band_diagonals(band), impulse))


def prefix_error(band: int, rounds: int) -> float:
    """Return the standard deviation of the noise in the sum of the first rounds, as root mean square over all rounds.

    Args:
        band: Number of diagonals of C; 1 is independent noise.
        rounds: Number of rounds.

    Returns:
        The error for normals of deviation 1.

    Example:
        >>> round(prefix_error(1, 100), 2), round(prefix_error(10, 100), 2)
        (7.11, 3.04)
    """
    weights = np.cumsum(inverse_diagonals(band, rounds))
    return math.sqrt(np.cumsum(weights**2).mean())


def round_deviation(band: int, round: int) -> float:
    """Return the standard deviation of a single round's noise: more than that of the normals, unless the band is 1.

    Args:
        band: Number of diagonals of C.
        round: The round, from 0.

    Returns:
        The deviation for normals of deviation 1.

    Example:
        >>> round_deviation(1, 5)
        1.0
    """
    return float(np.linalg.norm(inverse_diagonals(band, round + 1)))


class BandedNoise:
    """The correlated noise of a run's rounds, recomputed from the secret: nothing of it is stored.

    The last `band` vectors stay in memory. A resumed run computes the noise of the rounds before it once more. A round
    that is repeated has the same noise whatever its attempt, since nothing of a failed attempt is released; otherwise
    later rounds would depend on which attempt succeeded.

    Args:
        secret: Where the normals come from; those of a round are the independent noise of its first attempt.
        band: Number of diagonals of C.
        length: Length of the vectors.

    Example:
        ```python
        noise = BandedNoise(secret, band=10, length=1000)
        noise.at(0)  # of the first round
        ```
    """

    def __init__(self, secret: Secret, band: int, length: int) -> None:
        self._secret, self._length = secret, length
        self._diagonals = band_diagonals(band).tolist()
        self._recent: deque[Tensor] = deque(maxlen=band)
        self._rounds = 0

    def at(self, round: int) -> Tensor:
        """Return the noise of a round for deviation 1.

        Args:
            round: The round, from 0.

        Returns:
            A float32 tensor on the CPU, not to be changed in place.
        """
        if round < self._rounds - 1:
            self._recent.clear()
            self._rounds = 0
        while self._rounds <= round:
            self._recent.append(self._next())
            self._rounds += 1
        return self._recent[-1]

    def deviation(self, round: int) -> float:
        """Return the standard deviation of a round's noise.

        Args:
            round: The round, from 0.

        Returns:
            The deviation, at least 1.
        """
        return round_deviation(len(self._diagonals), round)

    def _next(self) -> Tensor:
        """Solve the next row of C W = Z for the new row of W."""
        found = self._secret.normals(self._length, "sum", self._rounds, 0)
        for diagonal, earlier in zip(self._diagonals[1:], reversed(self._recent), strict=False):
            found.sub_(earlier, alpha=diagonal)
        return found.div_(self._diagonals[0])
