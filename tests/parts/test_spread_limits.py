"""What the server's correction refuses, draws, and does where there is nothing to do."""

from __future__ import annotations

import pytest
import torch

from fedra.algorithms import fedgc
from fedra.core.model import Weights
from fedra.core.ownership import Owners
from fedra.core.view import Population, Server
from fedra.errors import ConfigError
from fedra.losses import CircleLoss, ElasticArcFace, MagFace
from fedra.losses.angular_loss import ScaledLoss
from fedra.parts.spread import CrossClientSoftmax, SpreadOut

OWNERS = Owners([torch.tensor([0, 1, 2]), torch.tensor([2, 3]), torch.tensor([4, 5])], 7)


def rows() -> torch.Tensor:
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("margin", "reason"),
    [(MagFace(), "norms must be given"), (CircleLoss(), "turns a cosine of 0.5 with another row into")],
    ids=["magface", "circle"],
)
def test_a_margin_without_meaning_on_the_server_is_refused_at_once(margin: ScaledLoss, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"must change only a row's similarity .*{reason}.* use cosface or arcface"):
        fedgc(margin=margin)


def test_a_random_margin_is_drawn_for_each_row_from_the_given_generator() -> None:
    penalty = CrossClientSoftmax(ElasticArcFace(), scale=4.0)

    def gradient(seed: int) -> torch.Tensor:
        torch.rand(3)  # nothing else that is drawn may matter
        return penalty.gradient(rows(), OWNERS, torch.Generator().manual_seed(seed), None)

    assert torch.equal(gradient(1), gradient(1))
    assert not torch.equal(gradient(1), gradient(2))
    own = penalty._own_logit(rows(), torch.Generator().manual_seed(1))
    assert len(own.unique()) > 1


@pytest.mark.parametrize("columns", [[], [3], [0, 2, 6], [1, 2, 3, 4, 5]])
def test_relations_to_some_classes_are_those_to_all(columns: list[int]) -> None:
    anchors, some = torch.arange(7), torch.tensor(columns, dtype=torch.int64)
    assert torch.equal(OWNERS.related(anchors, some), OWNERS.related(anchors, None)[:, some])


def test_where_no_row_moved_there_is_nothing_to_correct() -> None:
    rule = SpreadOut(active_only=True)
    weights = Weights({"head.weight": rows()}, {})
    server = Server(weights=weights, memory={rule.name: rule.init_server(weights)})
    population = Population(clients=3, examples=7, owners=OWNERS)
    after = rule.update(server, server, population)
    assert torch.equal(after.weights.params["head.weight"], rows())
    assert float(after.memory[rule.name]["rounds"]) == 1
