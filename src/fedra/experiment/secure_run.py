"""From `[secure]` to the sum of a round: how vectors become integers, and how their sum becomes the next model.

The simulator and a federation build the same `RingVectors` from a configuration, so their sums have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedra.config.schema import Config
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ReleaseTerms
from fedra.core.random import generator
from fedra.core.released_fold import Layout, Released, ReleasedFold, upload_blocks
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Server
from fedra.errors import ConfigError
from fedra.parts.private import PrivateMean
from fedra.privacy.accounting import noise_for
from fedra.privacy.banded import BandedNoise
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.secret import Secret
from fedra.privacy.secure.ring_vectors import RingVectors
from fedra.privacy.secure.secure_messages import FEWEST
from fedra.privacy.skellam import SkellamMechanism

LEAST_BITS, MOST_NUMBERS = 10, 2**30
"""The coarsest ring and the longest vector with noise by clients; the noise for a budget is computed with both."""


SKELLAM_ACCOUNTANT = "Renyi divergences of Skellam noise (Agarwal et al. 2021)"


def is_secure(config: Config) -> bool:
    """Return whether a configuration asks for secure aggregation."""
    return config.secure.aggregation != "none"


def adds_noise_by_clients(config: Config) -> bool:
    """Return whether clients add the noise themselves."""
    return config.privacy.level == "client" and config.privacy.where == "clients"


def check_noise_by_clients(config: Config) -> None:
    """Raise for settings that do not go with noise by clients."""
    if not adds_noise_by_clients(config):
        return
    if not is_secure(config):
        raise ConfigError(
            "privacy.where = 'clients' hides a client's share of the noise in the sum, which needs [secure]: set "
            "secure.aggregation = 'masks'"
        )
    if config.privacy.adapts_clip:
        raise ConfigError(
            "privacy.where = 'clients' needs a fixed norm, because the count of clipped clients would need noise "
            "too, got clip = 'adaptive': set privacy.clip to a number"
        )


def check_small_cohorts(config: Config, clients: int) -> None:
    """Raise if private cohorts are often too small to be added up: leaving those out would not be Poisson sampling."""
    cohort, delta = config.cohort, config.privacy.delta
    if config.privacy.level == "none" or cohort.sampling != "poisson" or delta is None:
        return
    from scipy.stats import binom

    chance = config.rounds * float(binom.cdf(FEWEST - 1, clients, cohort.fraction))
    if chance > delta / 10:
        raise ConfigError(
            f"cohorts of fewer than {FEWEST} clients cannot be added up securely and must be rarer than a tenth of "
            f"privacy.delta = {delta:g}, got {chance:.1g} over {config.rounds} rounds: raise cohort.fraction"
        )


def whom_to_trust(config: Config) -> str:
    """Return whom clients must trust for the guarantee of differential privacy."""
    if not is_secure(config):
        return "the server, which sees single uploads"
    if not adds_noise_by_clients(config):
        return "the server, which sees sums over the clients of a round and adds the noise"
    return (
        f"that at least {config.privacy.honest:.0%} of the clients of every round add their noise, and that the server "
        "has no help from clients"
    )


def noise_by_clients(config: Config, delta: float) -> float:
    """Return the noise that the clients of a round add together, as configured or for the budget.

    Sites compute it by themselves, so it does not count on turns.
    """
    privacy = config.privacy
    if privacy.noise != "auto":
        return privacy.noise
    if privacy.epsilon is None:
        raise ConfigError("privacy needs noise, or epsilon to compute it from, got neither: set one of them")
    return noise_for(privacy.epsilon, delta, 1.0, config.rounds, coarsest_mechanism)


def coarsest_mechanism(noise: float, rate: float = 1.0, apart: int = 1) -> SkellamMechanism:
    """Return the mechanism of clients' noise in the coarsest ring, before model and cohort are known."""
    return SkellamMechanism(noise=noise, rate=rate, apart=apart, scale=2.0**LEAST_BITS, length=MOST_NUMBERS)


def fewest_noisy(config: Config, clients: int) -> int:
    """Return how many of a round's clients must add their share of the noise."""
    return max(math.ceil(config.privacy.honest * clients - 1e-9), min(FEWEST, clients))


def ring_vectors(config: Config, clients: int, length: int, clip: float | None) -> RingVectors:
    """Return how the clients of a round encode their vectors.

    Args:
        config: The configuration, or what sites know of it.
        clients: Number of clients that are asked in the round.
        length: Number of values in a vector.
        clip: The round's clip norm; None without differential privacy.
    """
    privacy, bits = config.privacy, config.secure.bits
    if clip is None:
        return RingVectors(clients=clients, length=length, bound=config.secure.bound, bits=bits)
    if not adds_noise_by_clients(config):
        adapts = privacy.adapts_clip
        return RingVectors(clients=clients, length=length, bound=clip, clip=clip, adapts=adapts, bits=bits)
    assert privacy.delta is not None  # checked with the cohort
    vectors = RingVectors(
        clients=clients,
        length=length,
        bound=clip,
        clip=clip,
        noise=noise_by_clients(config, privacy.delta),
        fewest=fewest_noisy(config, clients),
        bits=bits,
    )
    if vectors.ring.bits < LEAST_BITS:
        raise ConfigError(
            f"noise by {clients} clients leaves {vectors.ring.bits} bits for a number, but {LEAST_BITS} are needed: "
            "take fewer clients per round, or less noise"
        )
    return vectors


class RingRelease:
    """Adds up encoded vectors: through masks in this process, or as the sum that a federation brought.

    Args:
        config: The configuration.
        vectors: How vectors are encoded.
        layout: Their layout.
        numbers: The round's mechanism, if the server adds noise or clips adapt; None without differential privacy.
        secret: Where noise comes from.
        where: Seed, round and attempt.
        banded: The server's noise if it is correlated.
    """

    def __init__(
        self,
        config: Config,
        vectors: RingVectors,
        layout: Layout,
        numbers: ClipAndNoise | None,
        secret: Secret,
        where: tuple[int, int, int],
        banded: BandedNoise | None = None,
    ) -> None:
        self._config, self._vectors, self._layout, self._where = config, vectors, layout, where
        self._secret = secret
        self._numbers: list[np.ndarray] = []
        self._total: tuple[np.ndarray, int] | None = None
        self.private = (
            None if numbers is None else PrivateSum(numbers, layout.length, secret, *where[1:], banded=banded)
        )

    def add(self, vectors: Tensor, weights: Sequence[float], clients: Sequence[int] = ()) -> None:
        """Encode each client's vector, as the client would."""
        for index, (vector, weight) in enumerate(zip(vectors.unbind(), weights, strict=True)):
            place = (clients[index] if clients else len(self._numbers), *self._where[1:])
            self._numbers.append(self._vectors.encode(vector, weight, self._secret, *place))

    def take(self, total: np.ndarray, answers: int, asked: int) -> None:
        """Take the sum over the clients of a federation, encoded for as many as were asked."""
        self._total = (total, answers)
        if asked != self._vectors.clients:  # a round that another process began
            self._vectors = ring_vectors(self._config, asked, self._vectors.length, self._vectors.clip)

    def finish(self) -> Released:
        """Open the sum, and add the server's noise if there is any."""
        total, answers = self._total or (self._simulate(), len(self._numbers))
        found = self._vectors.decode(total, answers)
        if self.private is None:
            return Released(found.total, found.weight)
        self.private.add_total(found.total, found.unclipped)
        released = self.private.finish()
        if (vectors := self._vectors).noise:
            # Of the fewest honest clients: the number of those that answered is not covered by the guarantee.
            length = vectors.noise * vectors.bound * math.sqrt(vectors.length)
            self.private.noise_share = length / max(float(released.total.norm()), 1e-30)
        return released

    def _simulate(self) -> np.ndarray:
        """Run the protocol over the whole cohort; those without an upload drop out after a stage drawn at random."""
        from fedra.privacy.secure.secure_sum import sum_securely

        seed, round, attempt = self._where
        missing = self._vectors.clients - len(self._numbers)
        stages = torch.randint(0, 3, (missing,), generator=generator(seed, "secure-dropout", round, attempt))
        section = self._config.secure
        return sum_securely(
            self._numbers,
            self._vectors,
            self._layout.digest,
            gone=stages.tolist(),
            threshold=section.threshold,
            degree=section.neighbors,
        )


class RingFold(ReleasedFold):
    """A released fold over a secure sum; it takes single uploads in a simulation, and sums in a federation."""

    def __init__(
        self,
        algorithm: Algorithm,
        release: RingRelease,
        layout: Layout,
        terms: ReleaseTerms,
        weigh: Callable[[int], float],
        part: PrivateMean | None,
    ) -> None:
        super().__init__(algorithm, release, layout, terms, weigh)
        self._ring, self._part = release, part

    @torch.no_grad()
    def add_stack(self, uploads: Uploads, clients: Sequence[int] = ()) -> None:
        blocks = upload_blocks(self._algorithm, uploads, self._terms)
        self._ring.add(self._layout.flatten(blocks), list(map(self._weigh, uploads.examples)), clients)
        self.uploads += len(uploads)

    def add_rejected(self, clients: Sequence[int]) -> None:
        """Under differential privacy, let clients with an invalid upload send zeros with their noise, as sites do."""
        if self._part is not None:
            blank = torch.full((len(clients), self._layout.length), torch.nan)
            self._ring.add(blank, [1.0] * len(clients), clients)
            self.uploads += len(clients)

    def add_sum(self, total: np.ndarray, clients: int, asked: int) -> None:
        """Take the sum over a number of clients, of `asked` ones."""
        self._ring.take(total, clients, asked)
        self.uploads += clients

    def finish(
        self, server: Server, population: Population, observe: Callable[[Server, Server], None] | None = None
    ) -> Server:
        after = super().finish(server, population, observe)
        private = self._ring.private
        if self._part is None or private is None:
            return after
        return self._part.after_release(after, private.next_clip(), private.noise_share)
