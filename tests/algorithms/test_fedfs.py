"""FedFS as a whole: what is trained, what stays, and that nobody's face becomes everybody's."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from naive_subject import OLD
from torch import Tensor, nn
from torch.nn import functional as F

import toy
from fedra import algorithms as ours
from fedra.core import tree
from fedra.core.batches import Examples
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.model import Model, Weights
from fedra.core.random import scoped_seed
from fedra.data import load
from fedra.data.clients import SeparateClients
from fedra.errors import ConfigError
from fedra.experiment.build import add_class_owners
from fedra.models.normalization import FixedBatchNormVectors
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


PEOPLE = 8


def vectors(images: int, seed: int) -> SeparateClients:
    """People who differ in 24 coordinates; their images vary along three directions that all people share."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    identities, nuisances = normal(PEOPLE, 24), 1.5 * normal(3, 24)
    return SeparateClients(
        [
            Examples(one + normal(images, 3) @ nuisances + 0.3 * normal(images, 24), torch.full((images,), person))
            for person, one in enumerate(identities)
        ]
    )


def faces(images: int, seed: int) -> SeparateClients:
    """Synthetic faces at a quarter of their size, as vectors."""
    found = load("synthetic-faces", identities=PEOPLE + 2, images=28, size=32, test_identities=2, seed=seed).train
    pixels = F.avg_pool2d(found.inputs.double() / 127.5 - 1, 2).flatten(1)
    own = [found.targets == person for person in range(PEOPLE)]
    return SeparateClients([Examples(pixels[mask][:images], found.targets[mask][:images]) for mask in own])


def untrained(kind: str, data: SeparateClients, seed: int) -> toy.Net:
    """A body without training; for faces, its embedding is standardized, as networks for faces do."""
    inputs = torch.cat([one.inputs for one in data.examples])
    with scoped_seed(seed):
        if kind == "faces":
            linear, norm = nn.Linear(inputs.shape[1], 64).double(), FixedBatchNormVectors(64).double()
            with torch.no_grad():
                variance, mean = torch.var_mean(linear(inputs), dim=0)
            norm.load_state_dict({**norm.state_dict(), "running_mean": mean, "running_var": variance})
            body = nn.Sequential(linear, norm)
        else:
            layer = nn.Tanh() if kind == "tanh" else nn.PReLU()
            body = nn.Sequential(nn.Linear(24, 48), layer, nn.Linear(48, 32)).double()
        return toy.Net(body, nn.Linear(body(inputs).shape[1], PEOPLE).double())


def separation(work: Job, weights: Weights) -> tuple[float, float]:
    """The mean cosine within people, and that minus the mean cosine between people."""
    people = [
        F.normalize(work.model.output(weights, work.clients[number].inputs).features, dim=1) for number in range(PEOPLE)
    ]
    within = torch.stack([((one @ one.T).sum() - len(one)) / (len(one) * (len(one) - 1)) for one in people]).mean()
    between = torch.stack([(one @ other.T).mean() for one, other in combinations(people, 2)]).mean()
    return float(within), float(within - between)


def gains(kind: str, images: int, seed: int, lr: float = 0.05, **settings: Any) -> tuple[float, float]:
    """What three rounds add to the similarity within people, and to its difference to that between people."""
    data = faces(images, seed) if kind == "faces" else vectors(images, seed)
    job = Job(
        algorithm=ours.fedfs(**settings),
        model=Model(untrained(kind, data, seed)),
        clients=data,
        local=LocalTraining(epochs=2, batch=16, lr=lr, momentum=0.9),
        classes=PEOPLE,
        seed=seed,
        test=data[0],
    )
    work = add_class_owners(job, data)
    history = toy.run(work, (tuple(range(PEOPLE)),) * 3)
    before, after = separation(work, work.model.start), separation(work, history.server.weights)
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("images", [6, 20])
@pytest.mark.parametrize("kind", ["tanh", "prelu"])
def test_people_become_more_similar_to_themselves_than_to_others(kind: str, images: int) -> None:
    found = [gains(kind, images, seed) for seed in range(4)]
    assert min(within for within, _ in found) > 0.01
    assert min(gap for _, gap in found) > 0.004
    assert sum(gap for _, gap in found) / 4 > 0.02


@pytest.mark.parametrize("images", [6, 20])
def test_synthetic_faces_become_more_similar_to_themselves_than_to_others(images: int) -> None:
    for seed in range(3):
        within, gap = gains("faces", images, seed, lr=0.005)
        assert within > 0.003
        assert gap > 0.003


@pytest.mark.parametrize(
    "settings", [OLD, {"length_gradient": True}, {"ratio": 1.0, "length_gradient": True}], ids=["old", "length", "both"]
)
def test_the_alternatives_to_the_default_bring_people_together(settings: dict[str, Any]) -> None:
    """The control: the measure detects labels and gradients that do not separate people."""
    assert sum(gains("prelu", 20, seed, **settings)[1] for seed in range(4)) / 4 < -0.01


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
