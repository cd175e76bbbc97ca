"""Shadow runs: the run's own configuration on other halves of the audited examples, for the LiRA attack."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedra.config import reading as configuration
from fedra.console import format_duration, steps, tell
from fedra.core.capabilities import CollectsFirstRows
from fedra.core.job import Job, ServerJob
from fedra.core.model import Weights
from fedra.core.random import key
from fedra.errors import ConfigError
from fedra.experiment.auditing.audit_target import AuditTarget
from fedra.experiment.auditing.photo_attack import MatchedPairs, membership_of, replace_members, violation_of
from fedra.experiment.build import build_runner
from fedra.experiment.cohort import CohortRule, FaultRule
from fedra.experiment.evaluators.evaluator import EvaluationOutcome
from fedra.experiment.plan import Plan
from fedra.experiment.private_run import open_private_run
from fedra.experiment.rounds import rounds
from fedra.privacy.audit.findings import Finding
from fedra.privacy.audit.membership import Membership
from fedra.privacy.audit.photo_scores import score_against_shadows, score_examples, split_pairs
from fedra.runners import Runner
from fedra.storage.state import State
from fedra.writing import write_atomically

READING = (
    "Each photograph is compared with models of the same configuration that were trained without it, so a photograph "
    "that is unusually easy for this model alone counts as a member."
)


def planned_shadows(target: AuditTarget) -> int:
    """Return how many shadow runs fit into the time limit, and print what they cost; raise if fewer than two do."""
    wanted, limit = target.settings.shadows, target.settings.minutes * 60
    if wanted < 2 or wanted % 2:
        raise ConfigError(f"shadows must be an even number of at least 2 shadow runs, got {wanted}")
    each = sum(float(line.get("seconds") or 0.0) for line in target.folder.metrics())
    fitting = wanted if each * wanted <= limit else int(limit // each) // 2 * 2
    if fitting < 2:
        raise ConfigError(
            f"two shadow runs must fit into the time limit, but each takes about {format_duration(each)} (as the run "
            f"itself did) and the limit is {format_duration(limit)}: raise minutes, or leave shadows out"
        )
    cost = f"{fitting} shadow runs of about {format_duration(each)} each: about {format_duration(each * fitting)}"
    cut = f"; {wanted} would exceed the limit of {format_duration(limit)}" if fitting < wanted else ""
    tell(target.console, f"{cost}{cut}; finished ones are kept, so an interrupted audit continues")
    return fitting


def attack_by_shadows(target: AuditTarget, pairs: MatchedPairs) -> tuple[Finding, dict[str, Membership]]:
    """Offline LiRA."""
    count = planned_shadows(target)
    began = time.monotonic()
    trained: list[np.ndarray] = []
    total = target.config.rounds * count
    with steps(target.console, f"{count} shadow runs", total) as done:
        for number in range(count):
            spent = time.monotonic() - began
            if len(trained) >= 2 and not number % 2 and spent / number * (number + 2) > target.settings.minutes * 60:
                break
            trained.append(_shadow_scores(target, pairs, number, done))
    kept = np.stack([split_pairs(len(pairs), number, target.settings.seed) for number in range(len(trained))])
    shadows = np.stack(trained)
    half = len(pairs)
    own = [score_examples(target.model, target.weights, part) for part in (pairs.members, pairs.others)]
    members = score_against_shadows(own[0], shadows[:, :half], ~kept)
    others = score_against_shadows(own[1], shadows[:, half:], kept)
    found = membership_of(target, pairs, members, others)
    finding = Finding(
        "photographs",
        f"LiRA with {len(trained)} shadow runs",
        tuple(found.figures(target.settings.seed)),
        reading=READING,
        decisive="AUC",
        violation=violation_of(target, found, None, "LiRA"),
        notes=(f"every photograph was left out by {len(trained) // 2} of the shadow runs",),
    )
    return finding, {f"LiRA, {len(trained)} shadow runs": found}


def _shadow_scores(target: AuditTarget, pairs: MatchedPairs, number: int, done: Callable[[int], None]) -> np.ndarray:
    """The scores of all audited examples under one shadow model, from its file if it was trained before."""
    path = target.out / "shadows" / f"{number:03d}.json"
    named = _fingerprint(target, pairs, number)
    stored = _read(path, named, 2 * len(pairs))
    if stored is not None:
        done(target.config.rounds)
        return stored
    weights = train_shadow(target, pairs, number, done)
    parts = (pairs.members, pairs.others)
    scores = np.concatenate([score_examples(target.model, weights, part) for part in parts])
    target.out.joinpath("shadows").mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, json.dumps({"of": named, "scores": scores.tolist()}).encode(), private=True)
    return scores


def _read(path: Path, named: str, length: int) -> np.ndarray | None:
    """Return stored scores, or None if there are none of this audit."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        scores = np.array(found["scores"], dtype=np.float64)
        return scores if found["of"] == named and scores.shape == (length,) and np.isfinite(scores).all() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fingerprint(target: AuditTarget, pairs: MatchedPairs, number: int) -> str:
    """What a shadow run depends on: configuration, data, audited examples and split."""
    parts = (
        configuration.write(target.config),
        json.dumps(target.folder.data_digests(), sort_keys=True),
        str(pairs.positions.tolist()),
        f"{target.settings.seed} {number}",
    )
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def train_shadow(
    target: AuditTarget, pairs: MatchedPairs, number: int, done: Callable[[int], None] = lambda rounds: None
) -> Weights:
    """Train one shadow model, in memory, from the run's own initial weights and with its privacy."""
    kept = split_pairs(len(pairs), number, target.settings.seed)
    job = _shadow_job(target, pairs, kept, key(target.settings.seed, "audit shadow run", number))
    config = target.config
    plan = Plan(
        rounds=config.rounds,
        cohort=CohortRule(config.cohort.fraction, config.cohort.sampling),
        faults=FaultRule(**config.faults.model_dump()),
        evaluate_every=config.rounds,
        evaluator=_no_test,
    )
    private = open_private_run(config, job, None, started=False)
    plan = plan if private is None else private.change(plan)
    state = State.fresh(job)
    runner = build_runner(config, job)
    try:
        for _ in rounds(job, runner, plan, state):
            done(1)
    finally:
        runner.close()
        state.memory.close()
    return Weights(*(job.model.arrange(values) for values in state.server.weights))


def _shadow_job(target: AuditTarget, pairs: MatchedPairs, kept: np.ndarray, seed: int) -> Job:
    start = target.start
    if start is None:
        raise ConfigError(
            f"shadow runs start from the run's initial weights, and their file '{target.config.model.weights}' is gone "
            "or was changed: restore it, or leave shadows out"
        )
    job = replace_members(target.job, pairs, kept)
    job.model.module_with(start)
    # The initial weights have what start rules draw from the run's seed; round zero computes from the examples.
    rules = tuple(rule for rule in job.algorithm.start if isinstance(rule, CollectsFirstRows))
    return replace(job, seed=seed, algorithm=replace(job.algorithm, personalize=None, start=rules))


def _no_test(job: ServerJob, runner: Runner, weights: Weights) -> EvaluationOutcome:
    return EvaluationOutcome()
