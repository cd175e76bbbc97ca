"""Every client's own model: fine-tuning against a plain loop, frozen statistics, and what must not change."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import toy
from fedra.algorithms import fedarc, fedavg, fedbabu
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.job import Job
from fedra.core.part import Sharing
from fedra.core.random import shuffles
from fedra.core.round import init_server
from fedra.evaluation.personalised import Personalised, personal_job, personalised
from fedra.parts.personalise import FineTune
from fedra.runners import RUNNERS


def job(algorithm: Algorithm, module: toy.Net | None = None, shape: tuple[int, ...] = (5,)) -> Job:
    work = toy.job(algorithm, module, toy.clients(shape))
    test = work.clients[0]
    return Job(
        algorithm, work.model, work.clients, work.local, toy.CLASSES, toy.SEED, Examples(test.inputs, test.targets)
    )


def run(work: Job) -> Personalised:
    server = init_server(work.algorithm, work.initial())
    return personalised(work, RUNNERS["sequential"], server, lambda client: {}, rounds=3)


@pytest.mark.parametrize("scope", ["all", "head", "body"])
def test_fine_tuning_is_plain_training(scope: str) -> None:
    work = job(fedavg().plus(FineTune(epochs=2, scope=scope)))  # type: ignore[arg-type]
    own = personal_job(work, FineTune(epochs=2, scope=scope), rounds=3)  # type: ignore[arg-type]
    result = next(iter(RUNNERS["sequential"](own).train(3, own.initial(), {}, [1], lambda client: {})))

    net: nn.Module = deepcopy(toy.mlp())
    lr = work.local.lr * work.local.lr_decay**3
    moving = [p for name, p in net.named_parameters() if scope in ("all", name.split(".")[0])]
    optimizer = torch.optim.SGD(moving, lr, work.local.momentum, weight_decay=work.local.weight_decay)
    data = work.clients[1]
    for order in torch.from_numpy(shuffles(toy.SEED, 3, [1], [len(data)], 2)):
        for rows in torch.split(order, 4):
            optimizer.zero_grad()
            F.cross_entropy(net.head(net.body(data.inputs[rows])), data.targets[rows]).backward()  # type: ignore
            optimizer.step()
    start = toy.mlp().state_dict()
    for name, value in net.state_dict().items():
        moved = result.upload.delta.get(name, torch.zeros_like(value))
        assert torch.allclose(start[name] + moved, value, atol=1e-12)


def test_figures_are_of_all_clients() -> None:
    outcome = run(job(fedavg().plus(FineTune(epochs=3))))
    assert set(outcome.own) == set(outcome.shared) == {0, 1, 2}
    own = torch.tensor(list(outcome.own.values()), dtype=torch.float64)
    assert outcome.figures()["personalised_accuracy"] == pytest.approx(float(own.mean()))
    assert outcome.figures()["personalised_accuracy_std"] == pytest.approx(float(own.std(correction=0)))


@pytest.mark.parametrize("scope", ["head", "body"])
def test_running_statistics_of_frozen_layers_are_the_servers(scope: str) -> None:
    tuned = FineTune(epochs=1, scope=scope)  # type: ignore[arg-type]
    assert len(run(job(fedavg().plus(tuned), toy.conv(), (1, 4, 4))).own) == 3


def test_every_method_that_keeps_state_can_be_fine_tuned() -> None:
    blended = fedarc(objective="repo").plus(FineTune(epochs=1))
    private = fedavg().plus(Sharing(private=("head.",)), FineTune(epochs=1))
    for algorithm in (blended, private, fedbabu(epochs=1)):
        assert len(run(job(algorithm)).own) == 3


def test_the_rate_may_start_anew() -> None:
    work = job(fedavg().plus(FineTune()))
    assert personal_job(work, FineTune(), 3).local.lr == pytest.approx(work.local.lr * work.local.lr_decay**3)
    assert personal_job(work, FineTune(initial_rate=True), 3).local.lr == work.local.lr
