"""FedFR: federated face recognition with public images, a contrast to the past model, and a branch of one's own.

Liu et al., "FedFR: joint optimization federated framework for generic and personalized face recognition", AAAI 2022.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedra.algorithms.fedpe import fedpe
from fedra.core.algorithm import Algorithm
from fedra.core.part import Sharing
from fedra.losses import CosFace
from fedra.losses.angular_loss import AngularLoss
from fedra.parts.objective import ModelContrast
from fedra.parts.public import PersonalBranch, PublicMargin
from fedra.parts.spread import MeanRows
from fedra.registry import Positive, Strength


def fedfr(
    *,
    margin: AngularLoss = CosFace(scale=30.0, margin=0.4),  # noqa: B008  (frozen)
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.4,
    contrast: Strength = 5.0,
    temperature: Positive = 0.5,
    branch: Strength = 10.0,
) -> Algorithm:
    """A margin over one's own and the public classes, a contrast of `contrast`, a private branch of weight `branch`.

    `[public]` names the public images; of them a client trains on those closer than `threshold` to one of its own.
    Clients weigh by the number of all images they train on. It wants a pre-trained start (`model.weights`).
    """
    sharing = Sharing(private=("personal-branch.",), owned=("head.", "personal-branch.class_"))
    terms = (PublicMargin(margin, threshold=threshold), ModelContrast(contrast, temperature), PersonalBranch(branch))
    return fedpe().plus(sharing, *terms, MeanRows())
