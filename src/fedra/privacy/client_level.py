"""Client-level differential privacy: the sum of clipped vectors with Gaussian noise.

The unit is all data of one client. Removing one client moves the sum by at most the clip norm, whatever blocks the
vector has, since they are clipped together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedra.core.released_fold import Released
from fedra.privacy.banded import BandedNoise
from fedra.privacy.secret import Secret

CLIP_RATE = 0.2
"""Step size of the adaptive clip in the logarithm (Andrew et al., NeurIPS 2021)."""
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class ClipAndNoise:
    """The numbers of one round's mechanism; all of them are public.

    Args:
        clip: The clip norm.
        noise: Standard deviation of the noise on the sum over the clip norm.
        divisor: What the sum is divided by, however many clients came.
        expected: Expected number of clients.
        count_noise: Standard deviation of the noise on the count of unclipped clients; None if the clip is fixed.
        quantile: Share of clients that should not be clipped.
    """

    clip: float
    noise: float
    divisor: float
    expected: float
    count_noise: float | None = None
    quantile: float = 0.5


class PrivateSum:
    """Adds up clipped vectors, and releases the sum with noise.

    Args:
        numbers: The round's mechanism.
        length: Length of the vectors.
        secret: Where the noise comes from.
        where: Round and attempt, which key the noise: a round that is repeated after a kill releases the same sum.
        banded: Correlated noise of the round, if clients take turns; None for independent noise.

    Example:
        ```python
        release = PrivateSum(ClipAndNoise(clip=1.0, noise=1.0, divisor=10, expected=10), 1000, secret, 3, 0)
        release.add(vectors, [1.0] * len(vectors))
        mean = release.finish().total / 10
        ```
    """

    def __init__(
        self, numbers: ClipAndNoise, length: int, secret: Secret, *where: int, banded: BandedNoise | None = None
    ) -> None:
        self._numbers, self._length, self._secret, self._where = numbers, length, secret, where
        self._banded = banded
        self._total: Tensor | None = None
        self._unclipped = 0.0
        self.noise_share = math.nan

    def add(self, vectors: Tensor, weights: Sequence[float], counted: bool = True) -> None:
        """Add vectors (n, d), clipped to the clip norm and then weighted; one that is not finite counts as zero.

        Args:
            vectors: The vectors.
            weights: Their weights.
            counted: Whether an adaptive clip follows their norms.
        """
        clip = self._numbers.clip
        norms = vectors.double().square().sum(dim=1).sqrt()
        finite = norms.isfinite()
        factors = torch.where(finite, (clip / norms.clamp(min=TINY)).clamp(max=1.0), 0.0)
        factors = factors * torch.tensor(weights, dtype=torch.float64, device=vectors.device)
        added = torch.tensordot(factors.float(), torch.where(finite.unsqueeze(1), vectors, 0.0), dims=1)
        self._total = added if self._total is None else self._total.add_(added)
        if counted:
            self._unclipped += float((finite & (norms <= clip)).double().sum()) - len(vectors) / 2

    def add_total(self, total: Tensor, unclipped: float) -> None:
        """Add the sum over clients that clipped themselves, and how many were not clipped minus half of them."""
        self._total = total.clone() if self._total is None else self._total.add_(total)
        self._unclipped += unclipped

    def finish(self) -> Released:
        """Return the noised sum, also of a round without clients."""
        numbers = self._numbers
        total = torch.zeros(self._length) if self._total is None else self._total
        noise, deviation = self._draw()
        noise = noise.to(total.device)
        noise = noise * (numbers.noise * numbers.clip) if numbers.noise else torch.zeros_like(total)
        released = total + noise
        # The expected length of the noise: its true length with the released sum would tell more than the sum alone.
        length = numbers.noise * numbers.clip * deviation * math.sqrt(self._length)
        self.noise_share = length / max(float(released.norm()), TINY)
        return Released(released, numbers.divisor)

    def _draw(self) -> tuple[Tensor, float]:
        """Return the round's noise before it is scaled, and its standard deviation."""
        if self._banded is None:
            return self._secret.normals(self._length, "sum", *self._where), 1.0
        return self._banded.at(self._where[0]), self._banded.deviation(self._where[0])

    def next_clip(self) -> float:
        """The clip norm of the next round, from the noised count of clients that were not clipped."""
        numbers = self._numbers
        if numbers.count_noise is None:
            return numbers.clip
        drawn = float(self._secret.normals(1, "count", *self._where)[0])
        share = (self._unclipped + numbers.count_noise * drawn) / numbers.expected + 0.5
        return numbers.clip * math.exp(-CLIP_RATE * (min(max(share, 0.0), 1.0) - numbers.quantile))
