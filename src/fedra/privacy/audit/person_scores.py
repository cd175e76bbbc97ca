"""Membership of persons: whether a network was trained on somebody, from any photographs of that person."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

MOST_PHOTOS = 10
"""Photographs of a person that are compared."""


def score_people(features: Tensor, people: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """How close the embeddings of a person's photographs are: training pulls those of its own people together.

    Args:
        features: Embeddings (n, d).
        people: The person of each embedding (n,).

    Returns:
        The mean cosine between different photographs of a person, for each person with at least two, and the persons.

    Example:
        >>> score_people(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([4, 4, 5]))
        (array([1.]), array([4]))
    """
    units = F.normalize(features.double(), dim=1)
    scores, known = [], []
    for person in torch.unique(people).tolist():
        own = units[people == person][:MOST_PHOTOS]
        if len(own) > 1:
            total = own.sum(dim=0).square().sum() - len(own)
            scores.append(float(total) / (len(own) * (len(own) - 1)))
            known.append(person)
    return np.array(scores), np.array(known, dtype=np.int64)
