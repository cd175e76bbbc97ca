"""From `[privacy]` and `[secure]` to what a run does with them: its mechanism, its secret, its cohorts, its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console

from fedra.config.mode import is_centralized
from fedra.config.privacy_sections import PrivacySection
from fedra.config.schema import Config
from fedra.console import steps
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import ReleaseTerms
from fedra.core.job import Job, ServerJob
from fedra.core.released_fold import Layout, ReleasedFold, upload_blocks
from fedra.core.tree import unflatten
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Server
from fedra.errors import ConfigError
from fedra.experiment.cohort import CohortRule, Expected
from fedra.experiment.example_run import ExampleRun, add_example_privacy, example_clip
from fedra.experiment.plan import PlainFolding, Plan
from fedra.experiment.private_mechanism import (
    check_band,
    check_canaries,
    check_sampling,
    fixed_clients,
    mechanism_of,
    planned_noise,
    rounds_apart,
    sampling_rate,
)
from fedra.experiment.secure_run import (
    SKELLAM_ACCOUNTANT,
    RingFold,
    RingRelease,
    adds_noise_by_clients,
    check_noise_by_clients,
    check_small_cohorts,
    is_secure,
    ring_vectors,
    whom_to_trust,
)
from fedra.experiment.vetting import vet_examples
from fedra.parts.private import PrivateMean
from fedra.privacy.accounting import Mechanism, accountant_name, check_installed
from fedra.privacy.audit.inserted_canaries import CanarySum, InsertedCanaries, describe_canaries
from fedra.privacy.banded import BandedNoise
from fedra.privacy.client_level import ClipAndNoise, PrivateSum
from fedra.privacy.compatible import check_delta, check_sums
from fedra.privacy.secret import Secret, read_secret, write_secret
from fedra.privacy.secure.neighbors import check_degree
from fedra.privacy.secure.secure_messages import FEWEST
from fedra.privacy.statement import PrivacyStatement
from fedra.storage.run_folder import RunFolder
from fedra.storage.state import State

UNCOVERED = ("train_loss", "clients", "dropped", "restarted", "bytes_up", "malicious")
"""Metrics of a round that single clients move."""
SECRET = "checkpoint/secret"


def check_privacy(config: Config, algorithm: Algorithm) -> None:
    """Raise for settings that privacy does not allow, before any data are read."""
    privacy = config.privacy
    if privacy.level == "none":
        return
    check_installed()
    check_noise_by_clients(config)
    check_band(config, config.partition.clients or None)
    check_canaries(config)
    if privacy.level == "example":
        example_clip(config)
    elif is_centralized(config):
        raise ConfigError(
            "privacy.level = 'client' needs clients, got mode = 'centralized': train federated, or protect examples "
            "(privacy.level = 'example')"
        )
    if privacy.epsilon is None and privacy.noise == "auto":
        raise ConfigError("privacy needs noise, or epsilon to compute it from, got neither: set one of them")
    if privacy.amplification == "auto" and privacy.band == 1:
        check_sampling(config)
    if privacy.figures == "covered" and any(config.diagnostics.model_dump().values()):
        raise ConfigError(
            "diagnostics look at clients' models as they are, which privacy.figures = 'covered' rules out: turn them "
            "off, or set privacy.figures = 'all'"
        )
    if privacy.figures == "covered" and (algorithm.personalize is not None or config.evaluation.per_client):
        raise ConfigError(
            "tests of personal models and of single clients are not covered by the guarantee: set "
            "privacy.figures = 'all', or leave them out"
        )


def add_privacy(config: Config, job: ServerJob) -> Algorithm:
    """Return the job's algorithm with the private mean around its combine rule, if the configuration asks for one."""
    algorithm, clients = job.algorithm, len(job.clients)
    if config.secure.aggregation != "none":
        check_sums(algorithm, job.moves_buffers, "secure")
        _check_cohort(config, clients)
    privacy = config.privacy
    if privacy.level == "none":
        return algorithm
    if privacy.level == "example":
        return add_example_privacy(config, job)
    check_sums(algorithm, job.moves_buffers, "privacy")
    delta = check_delta(privacy.delta, clients)
    check_band(config, clients)
    capped = privacy.weights == "capped"
    expected = config.cohort.fraction * clients
    part = PrivateMean(
        inner=algorithm.combine,
        noise=planned_noise(config, delta, fixed_clients(job)),
        clip=privacy.clip if isinstance(privacy.clip, float) else privacy.clip_start,
        quantile=privacy.quantile if privacy.adapts_clip else None,
        expected=expected,
        weight=config.cohort.fraction * sum(map(weight_by(privacy), _sizes(job))) if capped else None,
        canaries=privacy.canaries,
    )
    return replace(algorithm, combine=part)


def _check_cohort(config: Config, clients: int) -> None:
    """Raise unless the cohorts of a secure run hide their members, and their masks are affordable."""
    cohort = CohortRule(config.cohort.fraction).size(clients)
    if cohort < FEWEST:
        raise ConfigError(
            f"a secure sum needs at least {FEWEST} clients in a round, got {cohort}: fewer would learn each other's "
            "uploads; raise cohort.fraction"
        )
    check_degree(config.secure.neighbors, cohort)
    check_small_cohorts(config, clients)


def weight_by(privacy: PrivacySection) -> Callable[[int], float]:
    """Return a client's weight by its number of examples."""
    if privacy.weights == "uniform":
        return lambda examples: 1.0
    return lambda examples: min(examples / privacy.cap, 1.0)


def secure_weight(config: Config, job: ServerJob) -> Callable[[int], float]:
    """Return a client's weight in a secure sum: its share of the largest client, or what privacy says."""
    if config.privacy.level == "client":
        return weight_by(config.privacy)
    largest = largest_size(job)
    return lambda examples: examples / largest


def largest_size(job: ServerJob) -> int:
    """Return the number of examples that has weight 1 in a secure sum."""
    return max(_sizes(job))


@dataclass
class PrivateRun(PlainFolding):
    """The client-level privacy of one run: opens the fold of every round, and says what was spent."""

    config: Config
    job: ServerJob
    secret: Secret
    secret_path: Path | None = None
    _banded: BandedNoise | None = field(default=None, init=False, repr=False)

    @property
    def least(self) -> int:
        """Fewest uploads of a round: a private cohort may be empty, and a secure sum needs three."""
        return FEWEST if self.config.secure.aggregation != "none" else 0

    @property
    def part(self) -> PrivateMean | None:
        """The private mean; None with secure aggregation alone."""
        combine = self.job.algorithm.combine
        return combine if isinstance(combine, PrivateMean) else None

    @property
    def mechanism(self) -> Mechanism | None:
        """What the accountant counts."""
        if self.part is None:
            return None
        return mechanism_of(self.config, self.part.noise, fixed_clients(self.job))

    def rounds_within_budget(self) -> int:
        """Return the number of rounds to train: those of the configuration, or fewer if the budget ends before."""
        mechanism, privacy = self.mechanism, self.config.privacy
        if mechanism is None or privacy.epsilon is None or privacy.delta is None:
            return self.config.rounds
        if mechanism.epsilon(self.config.rounds, privacy.delta) <= privacy.epsilon * (1 + 1e-9):
            return self.config.rounds
        found = mechanism.releases_within(privacy.epsilon, privacy.delta)
        if not found:
            raise ConfigError(
                f"privacy.epsilon = {privacy.epsilon:g} must allow at least one round, but one round with noise "
                f"{mechanism.noise:g} costs {mechanism.epsilon(1, privacy.delta):.2f}: raise noise or epsilon"
            )
        return found

    def change(self, plan: Plan) -> Plan:
        """Return the plan with private cohorts and folds, and no more rounds than the budget allows."""
        return replace(plan, rounds=self.rounds_within_budget(), cohort=self.cohort(), folding=self)

    def announcement(self, rounds: int) -> str:
        """Return what the screen says before the first round."""
        secure = "secure aggregation: the server sees sums over the clients of a round"
        statement = self.statement(rounds)
        if statement is None:
            return secure
        ends = f"; the budget ends the run after round {rounds}" if rounds < self.config.rounds else ""
        return f"{statement.sentence()} after {rounds} rounds{ends}; not covered: {', '.join(statement.not_covered)}"

    def budget_spent(self, state: State) -> bool:
        """Return whether the run ended because another round would have exceeded its budget."""
        return self.part is not None and state.round >= self.rounds_within_budget()

    def cohort(self) -> CohortRule:
        """Return the rule that samples cohorts, from the secret if privacy counts on it."""
        section = self.config.cohort
        private = self.part is not None and section.sampling == "poisson"
        return CohortRule(section.fraction, section.sampling, self.secret if private else None)

    def fold(self, job: ServerJob, server: Server, round: int, attempt: int, expected: Expected) -> ReleasedFold:
        """Open the fold of a round."""
        terms = release_terms(job, round)
        layout = upload_layout(job, expected, terms)
        part = self.part
        if is_secure(self.config):
            return self._secure_fold(job, server, (round, attempt), layout, terms)
        assert part is not None  # open_private_run
        numbers, where = _numbers(part, server), (self.secret, round, attempt)
        release = (
            CanarySum(self._canaries(layout.length), part.canary_scores(server), numbers, *where)
            if part.canaries
            else PrivateSum(numbers, layout.length, *where, banded=self._banded_noise(layout.length))
        )
        return PrivateFold(part, release, job.algorithm, layout, terms, weight_by(self.config.privacy))

    def _canaries(self, length: int) -> InsertedCanaries:
        """Return the canaries that take part like clients."""
        config, job = self.config, self.job
        apart = rounds_apart(config, fixed_clients(job))
        return InsertedCanaries(config.privacy.canaries, length, job.seed, sampling_rate(config), apart)

    def _banded_noise(self, length: int) -> BandedNoise | None:
        """Return the source of correlated noise, the same for all rounds; None if rounds have independent noise."""
        band = self.config.privacy.band
        if self._banded is None and self.part is not None and band > 1:
            self._banded = BandedNoise(self.secret, band, length)
        return self._banded

    def recompute_noise(self, server: Server, rounds: int, console: Console | None) -> None:
        """Compute the noise of the rounds before a resumed one, on which its own depends if noise is correlated."""
        if self.config.privacy.band == 1 or self.part is None or not rounds:
            return
        layout = upload_layout(self.job, Expected.of(self.job, server), release_terms(self.job, rounds))
        banded = self._banded_noise(layout.length)
        assert banded is not None  # the band is above 1
        with steps(console, "noise of the earlier rounds", rounds) as done:
            for round in range(rounds):
                banded.at(round)
                done(1)

    def _secure_fold(
        self, job: ServerJob, server: Server, where: tuple[int, int], layout: Layout, terms: ReleaseTerms
    ) -> ReleasedFold:
        part, config = self.part, self.config
        cohort = len(self.cohort().sample(job.clients, job.seed, *where))
        vectors = ring_vectors(config, cohort, layout.length, None if part is None else part.clip_norm(server))
        numbers = None if part is None else _numbers(part, server)
        if numbers is not None and adds_noise_by_clients(config):
            numbers = replace(numbers, noise=0.0)
        banded = self._banded_noise(layout.length)
        release = RingRelease(config, vectors, layout, numbers, self.secret, (job.seed, *where), banded)
        return RingFold(job.algorithm, release, layout, terms, secure_weight(config, job), part)

    def record(self, server: Server, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of a round that the guarantee covers, with what was spent so far."""
        part, privacy = self.part, self.config.privacy
        if part is None or self.mechanism is None or privacy.delta is None:
            return metrics
        kept = metrics if privacy.figures == "all" else {k: v for k, v in metrics.items() if k not in UNCOVERED}
        tested = metrics["round"] % self.config.evaluation.every == 0 or metrics["round"] == self.config.rounds
        key = "epsilon" if privacy.seed == "secret" else "epsilon_if_secret"
        spent = self.mechanism.epsilon(part.releases(server), privacy.delta) if tested else None
        return {
            **kept,
            key: spent,
            "clip": part.clip_norm(server),
            "noise_share": float(server.memory[part.name]["noise_share"]),
        }

    def may_record_clients(self) -> bool:
        """Return whether clients.jsonl, which names the cohorts, may be written."""
        return self.part is None or self.config.privacy.figures == "all"

    def exhausted(self, state: State) -> bool:
        """Return whether no client may take part any more; the plan's rounds already keep the budget."""
        return False

    def statement_of(self, state: State) -> PrivacyStatement | None:
        """Return what is said about the run's privacy, and what its canaries measured."""
        stated, part, server = self.statement(state.round), self.part, state.server
        if stated is None or part is None or not part.canaries:
            return stated
        layout = upload_layout(self.job, Expected.of(self.job, server), release_terms(self.job, state.round))
        spent = stated.epsilon if stated.epsilon is not None else stated.epsilon_if_secret
        assert spent is not None  # one of both
        included = self._canaries(layout.length).included
        found = describe_canaries(part.canary_scores(server), included, spent, stated.delta)
        return replace(stated, canaries=found)

    def statement(self, releases: int) -> PrivacyStatement | None:
        """Return what is said about the run's privacy after a number of rounds."""
        part, mechanism, privacy = self.part, self.mechanism, self.config.privacy
        if part is None or mechanism is None or privacy.delta is None:
            return None
        spent = mechanism.epsilon(releases, privacy.delta)
        secret = privacy.seed == "secret"
        return PrivacyStatement(
            epsilon=spent if secret else None,
            epsilon_if_secret=None if secret else spent,
            delta=privacy.delta,
            noise=part.noise,
            clip="adaptive" if privacy.clip is None else privacy.clip,
            rate=mechanism.rate,
            releases=mechanism.participations(releases),
            band=privacy.band if privacy.band > 1 else None,
            apart=mechanism.apart if mechanism.apart > 1 else None,
            accountant=SKELLAM_ACCOUNTANT if adds_noise_by_clients(self.config) else accountant_name(),
            trust=whom_to_trust(self.config),
        )

    def forget(self) -> None:
        """Remove the secret of a finished run, so no one can recompute its noise."""
        if self.secret_path is not None:
            self.secret_path.unlink(missing_ok=True)


class PrivateFold(ReleasedFold):
    """A released fold that also advances the mechanism: the clip norm and the number of releases."""

    def __init__(self, part: PrivateMean, release: PrivateSum, *rest: Any) -> None:
        algorithm, *others = rest
        super().__init__(algorithm, release, *others)
        self._part, self._sum = part, release

    def finish(
        self, server: Server, population: Population, observe: Callable[[Server, Server], None] | None = None
    ) -> Server:
        after = super().finish(server, population, observe)
        scores = self._sum.scores if isinstance(self._sum, CanarySum) else None
        return self._part.after_release(after, self._sum.next_clip(), self._sum.noise_share, scores)


def open_private_run(
    config: Config, job: ServerJob, folder: RunFolder | None, started: bool
) -> PrivateRun | ExampleRun | None:
    """Open the privacy of a run; a run that has `started` must still have its secret."""
    if config.privacy.level == "none" and config.secure.aggregation == "none":
        return None
    secret, path = _open_secret(config, folder, started)
    if config.privacy.level != "example":
        return PrivateRun(config, job, secret, path)
    if isinstance(job, Job) and not started:
        vet_examples(job)
    secure = config.secure.aggregation != "none"
    return ExampleRun(config, job, secret, path, PrivateRun(config, job, secret) if secure else PlainFolding())


def _open_secret(config: Config, folder: RunFolder | None, started: bool) -> tuple[Secret, Path | None]:
    """Return the run's secret, and where it is kept until the run is finished."""
    if config.privacy.level == "none" or config.privacy.seed == "run":
        return Secret.from_seed(config.seed), None
    if folder is None:
        return Secret.create(), None
    path = folder.path / SECRET
    if started:
        return read_secret(path), path
    secret = Secret.create()
    folder.claim(SECRET)
    write_secret(path, secret)
    return secret, path


def release_terms(job: ServerJob, round: int) -> ReleaseTerms:
    """Return what is public about a round: the optimizer, and how many steps clients take."""
    taken = [job.local.steps(size) for size in _sizes(job)]
    return ReleaseTerms(job.local.at(round), mean(taken), len(set(taken)) == 1)


def upload_layout(job: ServerJob, expected: Expected, terms: ReleaseTerms) -> Layout:
    """Return where the numbers of an upload are in a client's vector."""
    return Layout.of(upload_blocks(job.algorithm, blank_upload(expected), terms))


def blank_upload(expected: Expected) -> Uploads:
    """Return an upload of zeros in the expected form, from which the layout of a vector follows."""

    def zeros(forms: Any) -> dict[str, torch.Tensor]:
        return {name: torch.zeros((1, *form.shape), dtype=form.dtype) for name, form in forms.items()}

    return Uploads(
        delta=zeros(expected.delta),
        buffers=zeros(expected.buffers),
        examples=[1],
        steps=[1],
        effective_steps=[1.0],
        extras=unflatten(zeros(expected.extras)),
        metrics={},
        broken_step=[None],
    )


def _numbers(part: PrivateMean, server: Server) -> ClipAndNoise:
    return ClipAndNoise(
        clip=part.clip_norm(server),
        noise=part.sum_noise,
        divisor=part.expected if part.weight is None else part.weight,
        expected=part.expected,
        count_noise=None if part.quantile is None else part.count_noise if part.noise else 0.0,
        quantile=part.quantile or 0.5,
    )


def _sizes(job: ServerJob) -> list[int]:
    return [job.clients.size(client) for client in range(len(job.clients))]
