"""FedFS: clients of one person each learn from its images alone, beside a frozen and a global model.

Kim, Choi and Kwak, "Federated learning for face recognition via intra-subject self-supervised learning", 2024 (arXiv
2407.16289).
"""

from __future__ import annotations

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.part import Sharing
from fedra.parts.personalise import KeepLast
from fedra.parts.subject import (
    Aggregation,
    Emphasis,
    FeatureTie,
    IntraSubject,
    LabelSource,
    Measure,
    Ratio,
    Within,
)
from fedra.registry import Positive


def fedfs(
    *,
    insub: Emphasis = 0.7,
    ratio: Ratio = 4.0,
    aggregation: Aggregation = "mean",
    label_source: LabelSource = "aggregated",
    label_temperature: Positive | None = None,
    temperature: Positive = 0.1,
    emphasis: Emphasis | None = None,
    within: Within = "subject",
    regulariser: Measure = "cosine",
    regulariser_temperature: Positive = 0.5,
) -> Algorithm:
    """Likens a person's images to a frozen model's view of them, near the global model; each client keeps its own.

    The objective is insub * F_insub + (1 - insub) * F_reg. The frozen model is the one that the run starts from
    (`model.weights`). The head, which tells nobody from anybody on a client of one person, is not trained, and nobody
    receives more of it than the rows of its own people.
    """
    labels = IntraSubject(insub, ratio, aggregation, label_source, label_temperature, temperature, emphasis, within)
    tie = FeatureTie(round(1 - insub, 12), regulariser, regulariser_temperature)
    return fedavg().plus(Sharing(owned=("head.",), frozen=("head.",)), labels, tie, KeepLast())
