"""Attacks on people: whether a person was trained on, and a picture from the class vector of a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedra.console import steps
from fedra.core.batches import Examples
from fedra.core.evaluate import EVALUATION_BATCH, embed
from fedra.core.model import Weights
from fedra.core.random import generator
from fedra.experiment.auditing.audit_target import AuditTarget, UnfitAttack, keyed_choice
from fedra.experiment.trained_run import sample_examples
from fedra.parts.margin import HEAD
from fedra.privacy.audit.findings import AuditFigure, Finding
from fedra.privacy.audit.membership import Membership, clopper_pearson, mean_interval
from fedra.privacy.audit.person_scores import score_people
from fedra.privacy.audit.row_inversion import invert_rows, rank_by_pixels, rank_of, share_beaten

FEWEST_PEOPLE = 5
"""Unseen people whose mean face is a start picture; with fewer, half of the training people give it."""
MOST_PHOTOS = 20
"""Photographs of a person behind its mean photograph."""
PEOPLE_READING = (
    "The AUC is the probability that photographs of a person who was trained on lie closer together than those of a "
    "person who was not; other photographs of the same people show whether the person leaks, not the photograph."
)
ROWS_READING = (
    "The network's own opinion is easy to fool, because it is what the attack optimizes; the share by pixels needs no "
    "network and is 0.5 for a picture that says nothing about the person."
)


def attack_people(target: AuditTarget) -> tuple[list[Finding], dict[str, Membership]]:
    """Membership of people, from their training photographs and from other photographs of them."""
    dataset, classes = target.dataset, len(target.dataset.classes)
    unseen = dataset.test.targets >= classes
    if not target.shows_people or not bool(unseen.any()):
        raise UnfitAttack("it needs people in training and photographs of unseen people, and the data set has none")
    known = dataset.known_test
    photos = {
        "training photographs": sample_examples(target.job, "train", classes * MOST_PHOTOS, target.settings.seed),
        "other photographs of the same people": Examples(known.inputs, known.targets, target.transform),
    }
    others = Examples(dataset.test.inputs[unseen], dataset.test.targets[unseen], target.transform)
    findings, curves = [], {}
    for name, own in photos.items():
        test = _membership(target, target.weights, own, others)
        if test is None:
            continue
        control = None if target.start is None else _membership(target, target.start, own, others)
        curves[name] = test
        findings.append(
            Finding(
                "people",
                name,
                tuple(test.figures(target.settings.seed)),
                () if control is None else tuple(control.figures(target.settings.seed)),
                PEOPLE_READING,
                "AUC",
                notes=(f"{len(test.members)} people of the training set, {len(test.others)} unseen people",),
            )
        )
    if not findings:
        raise UnfitAttack("it needs at least two people with two photographs each, in training and unseen")
    return findings, curves


def _membership(target: AuditTarget, weights: Weights, own: Examples, others: Examples) -> Membership | None:
    scores = [
        score_people(embed(target.model, weights, part), part.targets.cpu())[0] if len(part) else np.empty(0)
        for part in (own, others)
    ]
    return Membership(*scores) if min(map(len, scores)) > 1 else None


@dataclass(frozen=True)
class RowPictures:
    """What the pictures of class-row inversion show, all (n, c, h, w) in 0..1 but the start."""

    start: Tensor
    found: Tensor
    photographs: Tensor
    ranks: Sequence[float]
    candidates: int


def attack_rows(target: AuditTarget) -> tuple[Finding, RowPictures]:
    """Compute a face for class vectors that the server holds, and rank the right person among all."""
    rows = _class_rows(target)
    start, candidates = _start_picture(target)
    photos, owners = _photographs(target, candidates)
    means = torch.stack([photos[owners == person].mean(dim=0) for person in candidates.tolist()])
    draw = generator(target.settings.seed, "audit rows")
    chosen = keyed_choice(len(candidates), target.settings.people, draw)
    people = candidates[chosen]
    with steps(target.console, f"inverting {len(people)} class vectors", target.settings.steps) as done:
        found = invert_rows(
            target.embed, rows[people.to(rows.device)], start.to(rows.device), draw, target.settings.steps, done
        ).cpu()
    with torch.no_grad():
        embedded = [F.normalize(_embed_all(target, pictures), dim=1) for pictures in (found, photos, start[None])]
    ours, theirs, begin = embedded
    begin = begin.expand_as(ours)
    units = F.normalize(rows.cpu(), dim=1)[candidates]
    ranks = rank_by_pixels(found, means, chosen)
    figures, controls = (
        [
            _mean_figure("others beaten, by pixels", share_beaten(by_pixels, len(candidates)), 0.5),
            _share_figure("right person first, by pixels", by_pixels < 1.5, 1 / len(candidates)),
            _share_figure(
                "nearest photograph shows the person, by the network",
                (owners[(features @ theirs.T).argmax(dim=1)] == people).numpy(),
                1 / len(candidates),
            ),
            _share_figure(
                "right class vector nearest, by the network",
                rank_of(features @ units.T, chosen) < 1.5,
                1 / len(candidates),
            ),
            _mean_figure("cosine to the class vector", (features * units[chosen]).sum(dim=1).numpy(), None),
        ]
        for features, by_pixels in (
            (ours, ranks),
            (begin, rank_by_pixels(start.expand_as(found), means, chosen)),
        )
    )
    sharing = target.job.algorithm.sharing
    notes = [f"{len(people)} of {len(candidates)} people; the control is the start picture, a mean face of others"]
    if sharing.is_private(HEAD):
        notes.append("the clients of this run keep their class vectors; those of the server are the initial ones")
    finding = Finding(
        "rows",
        "a picture from a class vector",
        tuple(figures),
        tuple(controls),
        ROWS_READING,
        "others beaten, by pixels",
        notes=tuple(notes),
    )
    return finding, RowPictures(start, found, means[chosen], ranks.tolist(), len(candidates))


def _class_rows(target: AuditTarget) -> Tensor:
    rows = target.weights.params.get(HEAD)
    if rows is None or not target.has_images or not target.shows_people:
        raise UnfitAttack("it needs images of people and a head with one class vector per person")
    features = target.embed(torch.zeros(1, *target.dataset.shape)).shape[1]
    if rows.dim() != 2 or rows.shape != (len(target.dataset.classes), features):
        raise UnfitAttack("it needs a head whose rows are class vectors, one per person and as long as an embedding")
    return rows.detach()


def _start_picture(target: AuditTarget) -> tuple[Tensor, Tensor]:
    """The mean face of people who are not candidates, and the candidates."""
    dataset, classes = target.dataset, len(target.dataset.classes)
    trained = torch.unique(dataset.train.targets)
    unseen = (dataset.test.targets >= classes).nonzero()[:, 0]
    if len(torch.unique(dataset.test.targets[unseen])) >= FEWEST_PEOPLE:
        some = unseen[keyed_choice(len(unseen), 500, generator(target.settings.seed, "audit start"))]
        return target.pixels(dataset.test.inputs[some]).mean(dim=0), trained
    order = trained[torch.randperm(len(trained), generator=generator(target.settings.seed, "audit start"))]
    background, candidates = order[: len(order) // 2], order[len(order) // 2 :].sort().values
    if len(background) < 2 or len(candidates) < 2:
        raise UnfitAttack("it needs at least four people")
    photos, _ = _photographs(target, background)
    return photos.mean(dim=0), candidates


def _photographs(target: AuditTarget, people: Tensor) -> tuple[Tensor, Tensor]:
    """Some training photographs of each of these people, in 0..1, and who they show."""
    train = target.dataset.train
    rows = torch.cat([(train.targets == person).nonzero()[:MOST_PHOTOS, 0] for person in people.tolist()])
    return target.pixels(train.inputs[rows]), train.targets[rows]


def _embed_all(target: AuditTarget, pictures: Tensor) -> Tensor:
    return torch.cat([target.embed(some).cpu() for some in torch.split(pictures, EVALUATION_BATCH)])


def _share_figure(name: str, hits: np.ndarray, chance: float) -> AuditFigure:
    low, high = clopper_pearson(int(hits.sum()), len(hits))
    return AuditFigure(name, float(hits.mean()), low, high, chance, len(hits))


def _mean_figure(name: str, values: np.ndarray, chance: float | None) -> AuditFigure:
    return AuditFigure(name, float(values.mean()), *mean_interval(values.astype(np.float64)), chance, len(values))
