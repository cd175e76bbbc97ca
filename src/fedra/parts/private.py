"""Private combine rules: a mean whose sum over clients is clipped and noised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ReleaseTerms, ServerState
from fedra.core.model import Weights
from fedra.core.part import Combine
from fedra.core.tree import Params, Tree
from fedra.core.uploads import Uploads
from fedra.core.view import Client, Server
from fedra.errors import ConfigError
from fedra.parts.combine import WeightedMean
from fedra.registry import Positive, Strength

COUNT_NOISE = 1 / 20
"""Noise of the clipping count over the expected cohort (Andrew et al., NeurIPS 2021)."""


@dataclass(frozen=True)
class PrivateMean(Combine, ServerState):
    """The mean of clipped updates with Gaussian noise on their sum (DP-FedAvg, McMahan et al., ICLR 2018).

    All that a client uploads is clipped together to the norm C. The sum gets noise of standard deviation noise * C
    and is divided by a public constant. `[privacy] level = "client"` puts this rule around the algorithm's own one.

    Args:
        inner: The algorithm's own combine rule, applied to the released sum.
        noise: Standard deviation of the noise over the clip norm.
        clip: The clip norm; the first one if it adapts.
        expected: Expected number of clients in a round.
        quantile: Share of clients that should not be clipped, to which the clip norm adapts; None keeps it fixed.
        weight: Expected sum of the clients' weights; None if all weights are 1.
        canaries: Number of canaries that take part like clients, whose scores the server keeps.

    Example:
        >>> round(PrivateMean(noise=1.0, clip=0.1, quantile=0.5, expected=100.0).sum_noise, 7)
        1.0050378
    """

    inner: Combine = WeightedMean()  # noqa: RUF009  (frozen)
    noise: Strength = 1.0
    clip: Positive = 0.1
    expected: Positive = 1.0
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    weight: Positive | None = None
    canaries: Annotated[int, Field(ge=0)] = 0
    formula: ClassVar[str] = "w_g + ( sum_k d_k min(1, C / ||d_k||) + N(0, (noise C)^2) ) / expected"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantile is not None and self.noise >= 2 * self.count_noise:
            raise ConfigError(
                f"privacy.noise must be below twice the noise of the clipping count ({2 * self.count_noise:.3g}), got "
                f"{self.noise:g}: take more clients per round, or a fixed privacy.clip"
            )

    def check(self, algorithm: Algorithm) -> None:
        if not self.inner.sums:
            raise ConfigError(
                f"the combine rule '{self.inner.name}' needs single uploads, so noise on a sum does not fit it: "
                "use weighted-mean, or remove [privacy]"
            )

    @property
    def count_noise(self) -> float:
        """Standard deviation of the noise on the count of clients that were not clipped."""
        return self.expected * COUNT_NOISE

    @property
    def sum_noise(self) -> float:
        """Noise multiplier of the sum: with an adaptive clip, sum and count together have the multiplier `noise`."""
        if self.quantile is None or self.noise == 0:
            return self.noise
        return float((self.noise**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    @property
    def sums(self) -> bool:
        return True

    def init_server(self, weights: Weights) -> Tree:
        return {
            "clip": torch.tensor([self.clip], dtype=torch.float64),
            "releases": torch.zeros(1, dtype=torch.int64),
            "noise_share": torch.zeros(1, dtype=torch.float64),
            **({"canaries": torch.zeros(self.canaries, dtype=torch.float64)} if self.canaries else {}),
        }

    def broadcast(self, memory: Tree) -> Tree:
        return {"clip": memory["clip"]}  # public, so a client can compute what of its update the server adds up

    def add(self, total: Tree, upload: object) -> Tree:
        raise ConfigError("private-mean must be run with [privacy] in the configuration, which provides its secret")

    def update_summands(self, uploads: Uploads) -> Params:
        return self.inner.update_summands(uploads)

    def released_change(self, total: Params, clients: float, terms: ReleaseTerms) -> Params:
        return self.inner.released_change(total, clients, terms)

    def clip_norm(self, server: Server) -> float:
        """The clip norm of the next round.

        Args:
            server: The server before the round.

        Returns:
            The norm.
        """
        return float(server.memory[self.name]["clip"])

    def releases(self, server: Server) -> int:
        """How many rounds were released so far.

        Args:
            server: The server.

        Returns:
            Their number, from which epsilon follows.
        """
        return int(server.memory[self.name]["releases"])

    def canary_scores(self, server: Server) -> Tensor:
        """How strongly each canary showed in the released sums so far.

        Args:
            server: The server.

        Returns:
            The scores (canaries,).
        """
        found: Tensor = server.memory[self.name]["canaries"]
        return found

    def after_release(self, server: Server, clip: float, noise_share: float, scores: Tensor | None = None) -> Server:
        """The server after one more release.

        Args:
            server: The server after the round.
            clip: The clip norm of the next round.
            noise_share: Expected length of the noise over that of the released sum.
            scores: The canaries' scores, if there are any.

        Returns:
            The server with the mechanism's new state.
        """
        state = {
            "clip": torch.tensor([clip], dtype=torch.float64),
            "releases": torch.tensor([self.releases(server) + 1]),
            "noise_share": torch.tensor([noise_share], dtype=torch.float64),
            **({} if scores is None else {"canaries": scores}),
        }
        return server.with_memory(self.name, state)


def clip_as_released(update: Params, client: Client) -> Params:
    """Return an update as a private mean adds it up, so that a client keeps what the server learned.

    Args:
        update: The client's update.
        client: The client, which received the clip norm if the mean is private.

    Returns:
        The update, clipped to the norm of the round; unchanged without privacy.

    Example:
        ```python
        drift = clip_as_released(local.drift, local.client)
        ```
    """
    received = client.received.get(PrivateMean.name)
    if received is None:
        return update
    length = tree.norm(update)
    factor = torch.where(length.isfinite(), (received["clip"].to(length) / length.clamp(min=1e-30)).clamp(max=1.0), 0.0)
    return tree.scale(update, factor.squeeze())
