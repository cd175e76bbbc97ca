"""Centralized training against a loop written without fedra: modules, autograd, torch's own optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import toy
from fedra.algorithms import ENTRIES, fedarc, fedavg, fedlc, fedsam
from fedra.algorithms.fedprox import Proximal
from fedra.algorithms.fedsol import Distillation
from fedra.core.algorithm import Algorithm
from fedra.core.batches import LocalData
from fedra.core.job import Job
from fedra.core.local_training import LocalTraining
from fedra.core.rates import cosine, polynomial
from fedra.core.sharing import Sharing
from fedra.core.tree import Tree, flatten, unflatten
from fedra.errors import ConfigError
from fedra.losses import ArcFace, CurricularFace
from fedra.parts.combine import Median
from fedra.parts.gradient import Accumulate, AlsoDescend, Clip
from fedra.parts.margin import MarginSoftmax
from fedra.runners import RUNNERS
from fedra.runners.centralized import OPTIMIZER, check_centralized

EPOCHS = 4
SCALE, MARGIN, WEIGHT = 16.0, 0.3, 0.7
LOCAL = LocalTraining(batch=7, lr=0.1, momentum=0.9, weight_decay=1e-3, rounds=EPOCHS)
ARC = fedarc(weight=WEIGHT, margin=ArcFace(scale=SCALE, margin=MARGIN))


def job(algorithm: Algorithm, local: LocalTraining = LOCAL, module: toy.Net | None = None) -> Job:
    work = toy.job(algorithm, module, local=local)
    data = work.clients
    assert isinstance(data, type(toy.clients()))
    return replace(work, clients=data.together())


def train(work: Job, epochs: int = EPOCHS, **settings: Any) -> toy.History:
    return toy.run(work, ((0,),) * epochs, "centralized", threads=1, **settings)


def batches(work: Job, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The pool in the order in which fedra goes over it: all that the loop below takes from it."""
    pool = work.clients[0]
    for batch in LocalData(pool, work.model, work.local, work.classes, work.seed, epoch, 0):
        assert batch.index is not None
        yield pool.inputs[batch.index], pool.targets[batch.index]


def test_an_epoch_goes_over_every_example_once_in_another_order() -> None:
    work = job(fedavg())
    orders = [torch.cat([inputs[:, 0] for inputs, _ in batches(work, epoch)]) for epoch in range(2)]
    assert not torch.equal(*orders)
    everyone = torch.cat([own.inputs[:, 0] for own in toy.clients().examples])
    assert all(torch.equal(order.sort().values, everyone.sort().values) for order in orders)


def arcface(features: Tensor, vectors: Tensor, targets: Tensor) -> Tensor:
    """The margin on the angle itself, without fedra's formulas."""
    cosines = F.normalize(features) @ F.normalize(vectors).T
    angle = cosines.clamp(-1 + 1e-12, 1 - 1e-12).acos()
    own = F.one_hot(targets, len(vectors)).bool()
    moved = torch.where(own, (angle + MARGIN).cos(), cosines)
    past = own & (angle + MARGIN > math.pi)
    assert not past.any(), "the toy must stay where the formula is plain"
    return F.cross_entropy(SCALE * moved, targets)


def naive(
    work: Job,
    rate: Callable[[float], float] = lambda t: 0.1,
    margin: bool = False,
    clip: float | None = None,
    epochs: int = EPOCHS,
) -> dict[str, Tensor]:
    """One optimizer over all epochs; its rate set before every step."""
    net = toy.mlp()
    start = work.initial().params
    named = dict(net.named_parameters())
    if margin:
        named["margin-softmax.vectors"] = nn.Parameter(start["margin-softmax.vectors"].clone())
    kind: Any = torch.optim.Adam if work.local.optimizer == "adam" else partial(torch.optim.SGD, momentum=0.9)
    optimizer = kind(named.values(), lr=0.1, weight_decay=1e-3)
    for epoch in range(epochs):
        steps = len(list(batches(work, epoch)))
        for step, (inputs, targets) in enumerate(batches(work, epoch)):
            features = net.body(inputs)
            loss = F.cross_entropy(net.head(features), targets)
            if margin:
                loss = loss + WEIGHT * arcface(features, named["margin-softmax.vectors"], targets)
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(list(named.values()), clip)
            optimizer.param_groups[0]["lr"] = rate(epoch + step / steps)
            optimizer.step()
    return {name: value.detach() for name, value in named.items()}


def test_cross_entropy_with_momentum() -> None:
    work = job(fedavg())
    assert toy.distance(train(work).params, naive(work)) < 1e-9


def test_cross_entropy_and_arcface() -> None:
    work = job(ARC)
    assert toy.distance(train(work).params, naive(work, margin=True)) < 1e-9


def test_adam() -> None:
    local = replace(LOCAL, optimizer="adam", momentum=0.0)
    work = job(fedavg(), local)
    assert toy.distance(train(work).params, naive(work)) < 1e-9


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        (partial(cosine, warmup=1.0), lambda t: (1 + t) / 2 if t < 1 else (1 + math.cos(math.pi * (t - 1) / 3)) / 2),
        (partial(polynomial, power=2.0), lambda t: (1 - t / EPOCHS) ** 2),
    ],
)
def test_the_rate_moves_with_every_step(schedule: Any, rate: Callable[[float], float]) -> None:
    work = job(fedavg(), replace(LOCAL, schedule=schedule))
    assert toy.distance(train(work).params, naive(work, lambda t: 0.1 * rate(t))) < 1e-9


def test_lr_decay_moves_with_every_step_too() -> None:
    work = job(fedavg(), replace(LOCAL, lr_decay=0.5))
    assert toy.distance(train(work).params, naive(work, lambda t: 0.1 * 0.5**t)) < 1e-9


@pytest.mark.parametrize("rules", [(Clip(0.05),), (Clip(0.05), Accumulate(3))], ids=["clip", "clip and accumulate"])
def test_gradients_are_clipped(rules: tuple[Any, ...]) -> None:
    work = job(ARC.plus(*rules))
    plain = train(job(ARC))
    found = train(work)
    assert toy.distance(found.params, naive(work, margin=True, clip=0.05)) < 1e-9
    assert toy.distance(found.params, plain.params) > 1e-3


def test_the_optimizers_state_lives_on() -> None:
    """With fresh momentum each epoch, as a federation of one client has it, the course is another."""
    work = job(fedavg())
    fresh = toy.run(work, ((0,),) * EPOCHS)
    assert toy.distance(train(work).params, fresh.params) > 1e-3
    once = toy.distance(train(work, 1).params, toy.run(work, ((0,),)).params)
    assert once == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_goes_on_from_a_checkpoint_to_the_bit(kind: str, optimizer: Any) -> None:
    module = toy.mlp if kind == "mlp" else toy.conv
    work = job(ARC, replace(LOCAL, optimizer=optimizer, schedule=partial(cosine, warmup=1.0)), module(torch.float32))
    engine = RUNNERS["centralized"](work, threads=1)
    history = toy.start(work)
    for epoch in range(EPOCHS):
        history.round(engine, work, epoch, (0,))
        history.memory = {client: stored(memory) for client, memory in history.memory.items()}
    whole = train(work)
    assert toy.same_bits(history.params, whole.params)
    assert toy.same_bits(flatten(history.memory[0]), flatten(whole.memory[0]))


def stored(values: Tree) -> Tree:
    """As a checkpoint would give it back: flat names, contiguous bytes."""
    return unflatten({path: value.contiguous().clone() for path, value in flatten(values).items()})


def test_the_last_epochs_state_is_only_read() -> None:
    """An epoch that is interrupted must not have moved what the checkpoint would save."""
    work = job(fedavg())
    engine = RUNNERS["centralized"](work, threads=1)
    history = toy.start(work)
    history.round(engine, work, 0, (0,))
    kept = {path: value.clone() for path, value in flatten(history.memory[0]).items()}
    before = history.memory[0]
    assert set(kept) == {f"{OPTIMIZER}|{name}" for name in history.params}
    history.round(engine, work, 1, (0,))
    assert toy.same_bits(flatten(before), kept)


def test_every_step_is_told() -> None:
    work = job(fedavg())
    engine = RUNNERS["centralized"](work, threads=1)
    told: list[int] = []
    vars(engine)["on_step"] = lambda: told.append(1)
    toy.start(work).round(engine, work, 0, (0,))
    assert len(told) == vars(engine)["steps"] == math.ceil(sum(toy.SIZES) / 7)


ACCEPTED = {"fedavg", "fedsam", "fedasam", "feddecorr", "fedlc", "fedrs", "fedarc"}


@pytest.mark.parametrize("name", [name for name in ENTRIES if name in ACCEPTED])
def test_what_needs_no_clients_is_taken(name: str) -> None:
    history = train(job(ENTRIES[name].recipe()), 2)
    assert all(bool(value.isfinite().all()) for value in history.params.values())


@pytest.mark.parametrize("algorithm", [fedlc(), fedsam(rho=0.1), fedavg().plus(Sharing(frozen=("head.",)))])
def test_what_is_taken_acts(algorithm: Algorithm) -> None:
    assert toy.distance(train(job(algorithm)).params, train(job(fedavg())).params) > 1e-6


def test_a_loss_with_running_state_goes_on_from_epoch_to_epoch() -> None:
    history = train(job(fedavg().plus(MarginSoftmax(CurricularFace(scale=16.0)))), 2)
    first = train(job(fedavg().plus(MarginSoftmax(CurricularFace(scale=16.0)))), 1)
    state, earlier = (flatten(one.server.memory["margin-softmax"]) for one in (history, first))
    assert state
    assert any(not torch.equal(value, earlier[name]) for name, value in state.items())


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (fedavg().plus(Proximal()), "'proximal', which compares with the model at the start of a round"),
        (fedavg().plus(AlsoDescend(Distillation())), "'distillation', which compares with the model"),
        (ENTRIES["fedsol"].recipe(), "'distillation', which compares with the model at the start of a round"),
        (ENTRIES["moon"].recipe(), "'model-contrast', which compares with the model at the start of a round"),
        (ENTRIES["scaffold"].recipe(), "'control-variates', which keeps client state"),
        (ENTRIES["feddyn"].recipe(), "'dynamic-regularizer', which keeps client state"),
        (ENTRIES["fedadam"].recipe(), "'server-adam', which changes the average of several clients"),
        (ENTRIES["fednova"].recipe(), "'normalized-mean', which combines the uploads of several clients"),
        (fedavg().plus(Median()), "'median', which combines the uploads of several clients"),
        (fedavg().plus(Sharing(private=("head.",))), "'sharing', which keeps parameters with clients"),
        (ENTRIES["fedbabu"].recipe(), "'fine-tune', which trains a personal model for every client"),
    ],
)
def test_what_needs_clients_is_refused(algorithm: Algorithm, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"centralized training cannot use the part {sentence}.*remove it, or use"):
        check_centralized(algorithm)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_algorithm_is_either_taken_or_refused_with_a_sentence(name: str) -> None:
    algorithm = ENTRIES[name].recipe()
    if name in ACCEPTED:
        check_centralized(algorithm)
    else:
        with pytest.raises(ConfigError, match="centralized training cannot use the part"):
            check_centralized(algorithm)


def test_the_runner_wants_one_pool_and_one_epoch() -> None:
    for work in (toy.job(fedavg(), local=LOCAL), job(fedavg(), toy.LOCAL)):
        with pytest.raises(ConfigError, match="the centralized runner must have one client and epochs = 1, got "):
            RUNNERS["centralized"](work)


def test_evaluates_as_others_do() -> None:
    work = job(fedavg())
    weights = work.initial()
    found, wanted = (RUNNERS[name](work, threads=1).evaluate(weights) for name in ("centralized", "sequential"))
    assert (found.accuracy, found.mean_loss) == (wanted.accuracy, wanted.mean_loss)
