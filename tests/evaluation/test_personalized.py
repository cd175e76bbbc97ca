"""Every client's own model: fine-tuning against a plain loop, frozen statistics, and what must not change."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import toy
from fedra.algorithms import ENTRIES, fedarc, fedavg, fedbabu, fedpe, knn_per, local_only
from fedra.core.algorithm import Algorithm
from fedra.core.batches import Examples
from fedra.core.job import Job
from fedra.core.random import shuffles
from fedra.core.round import init_server
from fedra.core.sharing import Sharing
from fedra.errors import ConfigError, DataError
from fedra.evaluation.personal_models import (
    PersonalModels,
    aligned_rows,
    check_clients_testable,
    personal_job,
    personalized,
    train_personal_models,
)
from fedra.parts.personalize import FineTune
from fedra.runners import RUNNERS


def job(algorithm: Algorithm, module: toy.Net | None = None, shape: tuple[int, ...] = (5,)) -> Job:
    work = toy.job(algorithm, module, toy.clients(shape))
    test = work.clients[0]
    return Job(
        algorithm=algorithm,
        model=work.model,
        clients=work.clients,
        local=work.local,
        classes=toy.CLASSES,
        seed=toy.SEED,
        test=Examples(test.inputs, test.targets),
    )


def run(work: Job) -> PersonalModels:
    server = init_server(work.algorithm, work.initial())
    return personalized(work, RUNNERS["sequential"], server, lambda client: {}, rounds=3)


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
    assert outcome.summary()["personalized_accuracy"] == pytest.approx(float(own.mean()))
    assert outcome.summary()["personalized_accuracy_std"] == pytest.approx(float(own.std(correction=0)))


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


def far(algorithm: Algorithm, module: toy.Net | None = None) -> Job:
    """A job with a test set of many examples, so that accuracies differ."""
    shape = (1, 4, 4) if module is not None else (5,)
    test = toy.clients(shape, (400, 1, 1))[0]
    return replace(toy.job(algorithm, module), test=Examples(test.inputs, test.targets))


def outcome(work: Job, runner: str = "sequential", **more: Any) -> PersonalModels:
    history = toy.run(work, ((0, 1), (0, 1)))
    remembered = lambda client: history.memory.get(client, {})  # noqa: E731
    return personalized(work, RUNNERS[runner], history.server, remembered, 2, **more)


def test_several_lengths_in_one_run_are_what_each_would_be_alone() -> None:
    both = outcome(far(fedavg().plus(FineTune(epochs=(5, 1)))))
    assert set(both.ways) == {"after_1", "after_5"}
    for epochs in (1, 5):
        alone = outcome(far(fedavg().plus(FineTune(epochs=epochs))))
        assert both.ways[f"after_{epochs}"] == alone.own
        assert alone.ways == {}
    assert both.own == both.ways["after_5"]
    assert both.own != both.ways["after_1"]
    figures = both.summary()
    assert figures["personalized_accuracy"] == figures["personalized_accuracy_after_5"]
    assert figures["personalized_accuracy_after_1_worst_decile"] == pytest.approx(
        float(np.quantile(list(both.ways["after_1"].values()), 0.1))
    )


def test_own_and_global_are_counted_on_the_same_rows() -> None:
    """The global model is run once over the whole test set; a loop over clients says the same."""
    work = far(fedavg().plus(FineTune(epochs=1)))
    history = toy.run(work, ((0, 1, 2),))
    found = personalized(work, RUNNERS["sequential"], history.server, lambda client: {}, 1)
    own = dict(train_personal_models(work, RUNNERS["sequential"], history.server, lambda client: {}, 1, (0, 1, 2)))
    assert work.test is not None
    for client in range(3):
        rows = aligned_rows(work, client)
        for weights, accuracy in ((own[client], found.own[client]), (history.server.weights, found.shared[client])):
            logits = work.model.output(weights, work.test.inputs[rows]).logits
            assert accuracy == pytest.approx(float((logits.argmax(1) == work.test.targets[rows]).double().mean()))


def test_the_test_set_follows_the_clients_mixture_and_is_shuffled() -> None:
    work = far(fedavg().plus(FineTune()))
    assert work.test is not None
    for client in range(3):
        rows = aligned_rows(work, client)
        labels, own = work.test.targets[rows], work.clients[client].targets
        assert len(set(rows.tolist())) == len(rows)
        for label in range(toy.CLASSES):
            available = int((work.test.targets == label).sum())
            wanted = min(available, 1000 * int((own == label).sum()) // len(own))
            assert int((labels == label).sum()) == wanted
        assert not torch.equal(labels, labels.sort().values)
        assert torch.equal(rows, aligned_rows(work, client))


@pytest.mark.parametrize("runner", ["sequential", "stacked"])
@pytest.mark.parametrize(
    "name", ["local-only", "fedper", "lg-fedavg", "fedrep", "per-fedavg", "knn-per", "ditto", "apfl"]
)
def test_every_personalized_method_makes_its_models(name: str, runner: str) -> None:
    found = outcome(far(ENTRIES[name].recipe(), toy.conv()), runner)
    assert set(found.own) == {0, 1, 2}
    assert found.own != found.shared


def test_the_grid_of_a_mixture_is_reported() -> None:
    found = outcome(far(knn_per(epochs=(0, 2), grid=(0.0, 1.0))))
    assert set(found.ways) == {
        *("after_0", "after_0_share_0", "after_0_share_1"),
        *("after_2", "after_2_share_0", "after_2_share_1"),
    }
    assert found.ways["after_0_share_0"] == found.shared  # the model alone
    assert found.own == found.ways["after_2"]


def test_progress_counts_clients_and_lengths() -> None:
    told: list[int] = []
    outcome(far(fedavg().plus(FineTune(epochs=(1, 2)))), on_client=told.append)
    assert sum(told) == 6


def test_a_client_that_never_took_part_uses_what_it_has() -> None:
    assert outcome(far(local_only())).own[2] == outcome(far(local_only())).shared[2]


def test_own_classes_are_told_apart_by_their_own_numbers() -> None:
    """Where classes belong to clients, a client's model knows its own alone; the global one knows all."""
    algorithm = fedpe().plus(FineTune(epochs=30, initial_rate=True))
    work = toy.job(algorithm)
    test = toy.clients((5,), (300, 1, 1))[0]
    work = replace(work, test=Examples(test.inputs, test.targets))
    history = toy.run(work)
    found = personalized(work, RUNNERS["sequential"], history.server, lambda client: history.memory[client], 2)
    assert work.owners is not None
    for client in range(3):
        rows = aligned_rows(work, client)
        assert set(test.targets[rows].tolist()) <= set(work.owners.holdings[client].tolist())
    assert np.mean(list(found.own.values())) > 0.5


def test_a_client_that_cannot_be_tested_is_refused_before_training() -> None:
    work = far(fedavg().plus(FineTune()))
    check_clients_testable(work)
    assert work.test is not None
    strangers = replace(work.test, targets=torch.full_like(work.test.targets, 3))  # the last client lacks this class
    with pytest.raises(DataError, match="client 2 must have a class that is in the test set"):
        check_clients_testable(replace(work, test=strangers))


def test_a_length_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'epochs' of the part .* must be .*, got 0"):
        FineTune(epochs=0)
