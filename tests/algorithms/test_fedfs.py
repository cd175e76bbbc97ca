"""FedFS as a whole: what is trained, what stays, and that nobody's face becomes everybody's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import toy
from fedra import algorithms as ours
from fedra.core import tree
from fedra.core.model import Weights
from fedra.data.clients import SeparateClients
from fedra.errors import ConfigError
from fedra.runners import RUNNERS

EVERYONE = ((0, 1, 2), (0, 1, 2))


def one_person_each() -> SeparateClients:
    """Clients whose images all show one person."""
    own = toy.clients().examples
    return SeparateClients(
        [toy.replace(one, targets=torch.full_like(one.targets, place)) for place, one in enumerate(own)]
    )


def bits(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: value.clone() for group in weights for name, value in group.items()}


@pytest.mark.parametrize("runner", ["sequential", "processes", "stacked"])
def test_the_frozen_model_keeps_its_bits(runner: str) -> None:
    module = toy.conv()
    work = toy.job(ours.fedfs(), module)
    frozen, given = bits(work.model.start), {name: value.clone() for name, value in module.state_dict().items()}
    found = toy.run(work, EVERYONE, runner, **({"workers": 2} if runner == "processes" else {}))
    assert toy.same_bits(bits(work.model.start), frozen)
    assert toy.same_bits(dict(module.state_dict()), given)
    assert toy.distance(found.params, {name: frozen[name] for name in found.params}) > 1e-3
    assert not torch.equal(found.server.weights.buffers["body.1.running_mean"], frozen["body.1.running_mean"])


def test_nothing_of_the_frozen_model_travels_or_is_kept() -> None:
    work = toy.job(ours.fedfs())
    history = toy.run(work, EVERYONE)
    assert not history.server.memory
    assert all(not upload.extras for upload in history.uploads)
    assert all(not name.startswith("head.") for upload in history.uploads for name in upload.delta)
    assert {name for memory in history.memory.values() for name in memory} == {"keep-last"}


@pytest.mark.parametrize("aggregation", ["mean", "sum", "projection", "own"])
def test_stacked_clients_of_unequal_size_agree(aggregation: str) -> None:
    algorithm = ours.fedfs(aggregation=aggregation, ratio=2.0, regularizer="contrastive")  # type: ignore[arg-type]
    for module in (toy.mlp(), toy.conv()):
        work = toy.job(algorithm, module)
        assert toy.distance(toy.run(work, EVERYONE, "stacked").params, toy.run(work, EVERYONE).params) < 1e-9


def test_only_the_body_is_trained() -> None:
    work = toy.job(ours.fedfs(), data=one_person_each())
    first, last = work.initial().params, toy.run(work, EVERYONE).params
    for name, value in first.items():
        assert torch.equal(value, last[name]) is name.startswith("head.")


def test_the_learned_projection_begins_as_the_mean_and_moves() -> None:
    mean, learned = (toy.job(ours.fedfs(aggregation=how)) for how in ("mean", "projection"))  # type: ignore[arg-type]
    one = toy.replace(toy.LOCAL, epochs=1, batch=None, momentum=0.0, weight_decay=0.0)
    steps = [toy.run(toy.replace(work, local=one), ((0,),)).params for work in (mean, learned)]
    projection = steps[1].pop("intra-subject.projection")
    assert toy.distance(*steps) < 1e-12
    assert projection.shape == (6, 12)
    assert float((projection - torch.eye(6).repeat(1, 2) / 2).abs().max()) > 1e-6


def test_people_do_not_collapse_into_one() -> None:
    """The mean cosine between different clients' features does not run to one."""
    data = one_person_each()
    work = toy.job(ours.fedfs(), data=data)
    history = toy.run(work, ((0, 1, 2),) * 12)

    def crossing(weights: Weights) -> float:
        means = [
            F.normalize(work.model.output(weights, own.inputs).features, dim=1).mean(dim=0) for own in data.examples
        ]
        return float(torch.stack([means[a] @ means[b] for a, b in ((0, 1), (0, 2), (1, 2))]).mean())

    before, after = crossing(work.model.start), crossing(history.server.weights)
    assert after < before + 0.1 < 0.9


def test_one_image_a_client_moves_nothing() -> None:
    data = toy.clients(sizes=(1, 1, 1))
    local = toy.replace(toy.LOCAL, weight_decay=0.0)
    work = toy.job(ours.fedfs(), data=data, local=local)
    drift = tree.subtract(toy.run(work, EVERYONE).params, work.initial().params)
    assert float(tree.norm(drift)) < 1e-12


def test_a_client_keeps_what_it_trained_last() -> None:
    work = toy.job(ours.fedfs())
    engine, history = RUNNERS["sequential"](work), toy.start(work)
    history.round(engine, work, 0, (0, 1))
    kept = history.memory[0]["keep-last"]["params"]
    upload = history.uploads[0]
    wanted = tree.add(work.initial().params, upload.delta)
    assert toy.distance({name: kept[name] for name in upload.delta}, {n: wanted[n] for n in upload.delta}) < 1e-12


def test_centralized_training_refuses_it() -> None:
    with pytest.raises(ConfigError):
        RUNNERS["centralized"](toy.job(ours.fedfs()))
