"""FedArc: cross-entropy plus an angular-margin loss on class vectors that all clients share.

Tran et al., "Additive angular margin loss for federated learning in image classification".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedra.algorithms.fedavg import fedavg
from fedra.core.algorithm import Algorithm
from fedra.core.capabilities import CollectsUploads, ServerState
from fedra.core.model import Output, Weights
from fedra.core.part import Term
from fedra.core.tree import Params, Tree
from fedra.core.view import Population, Server, View
from fedra.losses import ArcFace
from fedra.losses.angular_loss import AngularLoss
from fedra.parts.margin import MarginSoftmax
from fedra.parts.objective import CrossEntropy
from fedra.registry import Strength


@dataclass(frozen=True)
class BlendedMargin(Term, ServerState, CollectsUploads):
    """The objective of FedArc's public code: cross-entropy in the first round, then a mixture with a margin loss.

    Args:
        margin: The margin loss on shared class vectors.
        share: Weight of cross-entropy from the second round on; the margin loss has weight 1 - share.
    """

    margin: MarginSoftmax = MarginSoftmax()  # noqa: RUF009  (frozen)
    share: Strength = 0.5
    fits_labels: ClassVar[bool] = True
    formula: ClassVar[str] = "a CE + (1 - a) L_margin,  a = 1 in the first round, then `share`"

    @property
    def collects(self) -> bool:
        return False  # it counts rounds, and nothing of the uploads

    def init_server(self, weights: Weights) -> Tree:
        return {"rounds": torch.zeros(1)}

    def broadcast(self, memory: Tree) -> Tree:
        return memory

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        rounds: Tensor = view.client.received[self.name]["rounds"][0]
        first = (rounds == 0).to(output.logits.dtype)
        share = first + (1 - first) * self.share
        entropy = CrossEntropy().loss(output, params, view)
        return share * entropy + (1 - share) * self.margin.loss(output, params, view)

    def finish_round(self, before: Server, server: Server, total: Tree, population: Population) -> Server:
        return server.with_memory(self.name, {"rounds": before.memory[self.name]["rounds"] + 1})


def fedarc(
    *,
    weight: Strength = 0.5,
    margin: AngularLoss = ArcFace(scale=64.0, margin=0.4),  # noqa: B008  (frozen)
    objective: Literal["paper", "repo", "margin"] = "paper",
) -> Algorithm:
    """Adds a margin loss on averaged class vectors to the local objective.

    Args:
        weight: Weight of the margin loss; 0 is FedAvg. With `objective="repo"` it is the weight of cross-entropy.
        margin: The margin loss. The paper uses ArcFace; its public code computes CosFace.
        objective: "paper" adds the margin loss to cross-entropy. "repo" follows the public code: cross-entropy alone in
            the first round, then weight * CE + (1 - weight) * L_margin. "margin" leaves cross-entropy out, as is usual
            in face recognition: then the body is trained and the classifier is not.

    Returns:
        The algorithm, for `fedra.simulate` or `Algorithm.plus`.

    Example:
        >>> from fedra.losses import CosFace
        >>> [term.name for term in fedarc(weight=0.3, margin=CosFace(scale=30)).objective]
        ['cross-entropy', 'margin-softmax']
    """
    if objective == "paper":
        return fedavg().plus(MarginSoftmax(margin, weight))
    if objective == "margin":
        return replace(fedavg(), objective=(MarginSoftmax(margin, weight),))
    return replace(fedavg(), objective=(BlendedMargin(MarginSoftmax(margin, 1.0), weight),))
