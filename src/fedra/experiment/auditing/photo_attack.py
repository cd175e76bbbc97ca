"""Membership of photographs: matched pairs of training and test examples, a threshold on the loss, and LiRA."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedra.core.batches import Examples
from fedra.core.deferred import DeferredInputs
from fedra.core.job import Job
from fedra.core.random import generator
from fedra.data.clients import LocalLabels, PooledClients, SeparateClients
from fedra.experiment.auditing.audit_target import AuditTarget, UnfitAttack, keyed_choice
from fedra.privacy.audit.findings import Finding
from fedra.privacy.audit.membership import Membership
from fedra.privacy.audit.photo_scores import score_examples

READING = (
    "The AUC is the probability that a training photograph looks more like one than a test photograph of the same "
    "class; the rates at few false positives show the photographs that are recognized surely."
)


@dataclass(frozen=True)
class MatchedPairs:
    """Training examples, and for each a test example of the same class that was not trained on.

    Args:
        members: The training examples with global labels.
        others: The test examples, in the order of the members.
        positions: Where each member is among all clients' examples, in client order.
    """

    members: Examples
    others: Examples
    positions: Tensor

    def __len__(self) -> int:
        return len(self.members)


def match_pairs(target: AuditTarget) -> MatchedPairs:
    """Choose the audited examples; equal mixes of classes, so a class that is easy gives nothing away."""
    job, known = target.job, target.dataset.known_test
    if not len(known):
        raise UnfitAttack("it needs test examples of the training classes, and the data set has none")
    clients = _unlabeled(job)
    labels = torch.cat([clients.labels(client).cpu() for client in range(len(clients))])
    draw = generator(target.settings.seed, "audit pairs")
    ours, theirs = [], []
    for label in torch.unique(known.targets).tolist():
        mine, other = (labels == label).nonzero()[:, 0], (known.targets == label).nonzero()[:, 0]
        count = min(len(mine), len(other))
        ours.append(mine[torch.randperm(len(mine), generator=draw)[:count]])
        theirs.append(other[torch.randperm(len(other), generator=draw)[:count]])
    positions, rows = torch.cat(ours), torch.cat(theirs)
    if not len(positions):
        raise UnfitAttack("it needs test examples of the training classes, and no class has both")
    chosen = keyed_choice(len(positions), target.settings.examples, draw)
    positions, rows = positions[chosen], rows[chosen]
    others = Examples(known.inputs[rows], known.targets[rows], target.transform)
    members = Examples(_inputs_at(clients, positions), labels[positions], target.transform)
    return MatchedPairs(members, others, positions)


def _unlabeled(job: Job) -> PooledClients | SeparateClients:
    """The clients with global labels."""
    clients = job.clients.clients if isinstance(job.clients, LocalLabels) else job.clients
    assert isinstance(clients, PooledClients | SeparateClients)
    return clients


def _inputs_at(clients: PooledClients | SeparateClients, positions: Tensor) -> Tensor:
    if isinstance(clients, PooledClients):
        return clients.pool.inputs[torch.cat(list(clients.rows))[positions]]
    return torch.cat([own.inputs for own in clients.examples])[positions]


def replace_members(job: Job, pairs: MatchedPairs, kept: np.ndarray) -> Job:
    """The job with other training examples in place of the members that are not kept; classes and sizes are equal."""
    out = torch.from_numpy(~kept)
    positions, inputs = pairs.positions[out], pairs.others.inputs[out]
    clients = _unlabeled(job)
    changed: PooledClients | SeparateClients
    if isinstance(clients, PooledClients):
        if isinstance(clients.pool.inputs, DeferredInputs):
            raise UnfitAttack("shadow runs need images in memory, and this run streams them: set data.stream = false")
        pool = clients.pool.inputs.clone()
        pool[torch.cat(list(clients.rows))[positions]] = inputs.to(pool)
        changed = PooledClients(replace(clients.pool, inputs=pool), clients.rows)
    else:
        whole = torch.cat([own.inputs for own in clients.examples])
        whole[positions] = inputs.to(whole)
        pieces = torch.split(whole, [len(own) for own in clients.examples])
        changed = SeparateClients(
            [replace(own, inputs=piece) for own, piece in zip(clients.examples, pieces, strict=True)]
        )
    if isinstance(job.clients, LocalLabels):
        return replace(job, clients=LocalLabels(changed, job.clients.owners))
    return replace(job, clients=changed)


def membership_of(target: AuditTarget, pairs: MatchedPairs, members: np.ndarray, others: np.ndarray) -> Membership:
    """The scores as a membership test; intervals are over people where a class is a person."""
    if not target.shows_people:
        return Membership(members, others)
    groups = pairs.members.targets.numpy()
    return Membership(members, others, groups, groups)


def attack_by_threshold(target: AuditTarget, pairs: MatchedPairs) -> tuple[Finding, dict[str, Membership]]:
    """A threshold on the loss of the finished model, and as control on that of the model before training."""

    def score(weights: object) -> Membership:
        scored = (score_examples(target.model, weights, part) for part in (pairs.members, pairs.others))  # type: ignore[arg-type]
        return membership_of(target, pairs, *scored)

    curves = {"loss threshold": score(target.weights)}
    notes = [f"{len(pairs):,} training photographs, each with a test photograph of the same class"]
    if target.start is None:
        notes.append("no control: the file of the initial weights is gone or was changed")
    else:
        curves["before training (control)"] = score(target.start)
    found = curves["loss threshold"]
    control = curves.get("before training (control)")
    finding = Finding(
        "photographs",
        "threshold on the loss",
        tuple(found.figures(target.settings.seed)),
        () if control is None else tuple(control.figures(target.settings.seed)),
        READING,
        "AUC",
        violation_of(target, found, control, "a threshold on the loss"),
        notes=tuple(notes),
    )
    return finding, curves


def violation_of(target: AuditTarget, found: Membership, control: Membership | None, attack: str) -> str | None:
    """Why a curve contradicts the run's guarantee; None if it does not, or if the control does as well."""
    bound = target.photograph_bound
    if bound is None or not found.exceeds(*bound) or (control is not None and control.exceeds(*bound)):
        return None
    return f"{attack} finds more photographs than epsilon {bound[0]:.2f} of a photograph allows"
