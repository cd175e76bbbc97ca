"""Methods whose class embeddings belong to clients, against plain loops; and that nobody sees another's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from naive import Method, Setting, train
from naive_owned import (
    Owned,
    cosface,
    cosface_across,
    cosine_across,
    hinge_across,
    mean_hinge_across,
    pull,
    softmax_across,
)
from naive_subject import OLD, Subject

import toy
from fedra import algorithms as ours
from fedra.core import job as jobs
from fedra.core.algorithm import Algorithm
from fedra.core.tree import flatten
from fedra.data.clients import LocalLabels, SeparateClients
from fedra.errors import ConfigError
from fedra.losses import CosFace, DynamicAdaCos
from fedra.parts.start import MeanRows
from fedra.runners import RUNNERS

EVERYONE = ((0, 1, 2), (0, 1, 2), (0, 1, 2))
LATECOMER = ((0, 1), (1,), (0, 2))
COS = CosFace(scale=3.0, margin=0.2)


@dataclass(frozen=True)
class Case:
    name: str
    algorithm: Algorithm
    make: Callable[[], Method]


CASES = [
    Case("fedpe", ours.fedpe(), Owned),
    Case("fedpe-fixed", ours.fedpe(fixed=True), lambda: Owned(fixed=True)),
    Case("fedpe-cosface", ours.fedpe(margin=COS), lambda: Owned(local_loss=cosface(3.0, 0.2))),
    Case("fedgc", ours.fedgc(strength=2.0), lambda: Owned(server_loss=softmax_across, rate=0.2)),
    Case(
        "fedgc-cosface",
        ours.fedgc(margin=COS, strength=2.0),
        lambda: Owned(server_loss=cosface_across(3.0, 0.2), rate=0.2, local_loss=cosface(3.0, 0.2)),
    ),
    Case("fedcos", ours.fedcos(strength=2.0), lambda: Owned(server_loss=cosine_across, rate=0.2)),
    Case(
        "fedaws",
        ours.fedaws(threshold=-0.5, strength=2.0),
        lambda: Owned(server_loss=hinge_across(-0.5), rate=0.2, local_loss=pull),
    ),
    Case(
        "fedface",
        ours.fedface(threshold=-0.5, strength=2.0, steps=3),
        lambda: Owned(server_loss=mean_hinge_across(-0.5), rate=0.2, local_loss=pull, fixed=True, server_steps=3),
    ),
    Case("fedfs", ours.fedfs(), Subject),
    Case("fedfs-share", ours.fedfs(ratio=0.5), lambda: Subject(settings={"ratio": 0.5})),
    Case("fedfs-dot", ours.fedfs(**OLD), lambda: Subject(settings=OLD)),
    Case(
        "fedfs-kl",
        ours.fedfs(insub=0.4, ratio=2.0, label_source="frozen", within="batch", regularizer="kl"),
        lambda: Subject(share=0.4, settings={"ratio": 2.0, "label_source": "frozen", "within": "batch"}, measure="kl"),
    ),
]


def alone() -> SeparateClients:
    """Two clients of two classes each: nobody shares a class."""
    own = toy.clients(sizes=(11, 6)).examples
    held = (torch.tensor([0, 2]), torch.tensor([1, 3]))
    return SeparateClients(
        [toy.replace(one, targets=two[torch.arange(len(one)) % 2]) for one, two in zip(own, held, strict=True)]
    )


def setting(data: SeparateClients) -> Setting:
    local = toy.LOCAL
    pairs = [(own.inputs, own.targets) for own in data.examples]
    batch = local.batch or 0
    return Setting(pairs, toy.SEED, local.epochs, batch, local.lr, local.lr_decay, local.momentum, local.weight_decay)


@pytest.mark.parametrize("cohorts", [EVERYONE, LATECOMER], ids=["everyone", "latecomer"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_shared_identities(case: Case, cohorts: tuple[tuple[int, ...], ...]) -> None:
    check(case, toy.sharers(), cohorts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_identities_of_one_client_each(case: Case) -> None:
    check(case, alone(), ((0, 1), (1,), (0, 1)))


def check(case: Case, data: SeparateClients, cohorts: tuple[tuple[int, ...], ...]) -> None:
    work = toy.job(case.algorithm, data=data)
    first = toy.start(work).params
    net = toy.mlp()
    net.load_state_dict(first)
    wanted = train(case.make(), net, cohorts, setting(data))
    found = toy.run(work, cohorts).params
    assert toy.distance(found, {name: value.detach() for name, value in wanted.named_parameters()}) < 1e-9
    assert toy.distance(found, first) > 1e-3
    if "fixed" in case.name:
        assert torch.equal(found["head.weight"], first["head.weight"])
        assert torch.allclose(first["head.weight"].norm(dim=1), torch.ones(toy.CLASSES, dtype=torch.float64))


def test_fedface_begins_at_the_mean_features_of_each_class() -> None:
    """Of a class that two clients hold, the plain mean of theirs; clients that never take part are asked too."""
    work = toy.job(ours.fedface(strength=0.0))
    plain = toy.job(ours.fedpe())
    net, data = toy.mlp(), toy.sharers()
    means: dict[int, list[torch.Tensor]] = {}
    for own in data.examples:
        for label in own.targets.unique().tolist():
            means.setdefault(label, []).append(net.body(own.inputs[own.targets == label]).mean(dim=0))
    wanted = torch.stack([torch.stack(means[label]).mean(dim=0) for label in range(toy.CLASSES)]).detach()
    first = toy.start(work).params
    assert torch.allclose(first["head.weight"], wanted, rtol=0, atol=1e-12)
    assert toy.same_bits({**first, "head.weight": wanted}, {**plain.initial().params, "head.weight": wanted})
    after = toy.run(work, ((0,), (0,)))
    assert torch.equal(after.params["head.weight"], first["head.weight"])
    assert toy.distance(after.params, first) > 1e-3


def test_a_fedface_client_never_sends_its_class_vector_again() -> None:
    history = toy.run(toy.job(ours.fedface()), EVERYONE)
    assert all(set(upload.delta) == {"body.0.weight", "body.0.bias"} for upload in history.uploads)
    assert not any(upload.extras for upload in history.uploads)


def test_mean_rows_need_rows_that_belong_to_clients() -> None:
    with pytest.raises(ConfigError, match=r"class vectors .* must be owned by clients"):
        ours.fedavg().plus(MeanRows())


def test_without_strength_the_server_leaves_fedpe_alone() -> None:
    plain = toy.run(toy.job(ours.fedpe()), EVERYONE).params
    for method in (ours.fedgc(strength=0.0), ours.fedcos(strength=0.0)):
        assert toy.same_bits(toy.run(toy.job(method), EVERYONE).params, plain)


def test_correction_parts_the_rows_of_different_clients() -> None:
    def crossing(method: Algorithm) -> float:
        rows = torch.nn.functional.normalize(
            toy.run(toy.job(method, data=alone()), ((0, 1),) * 6).params["head.weight"]
        )
        return float((rows[[0, 2]] @ rows[[1, 3]].T).max())

    assert crossing(ours.fedgc(strength=2.0)) < crossing(ours.fedpe()) - 0.05


@pytest.mark.parametrize("runner", ["sequential", "stacked"])
def test_a_client_receives_its_own_rows_and_no_other(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is handed to a client is searched for the rows of classes it does not hold."""
    work = toy.job(ours.fedgc().plus(ours.scaffold(), ours.fedavgm()), data=alone())
    history, seen = toy.start(work), []
    rows = history.params["head.weight"]

    def hand_over(tensors: dict[str, torch.Tensor], clients: list[int]) -> None:
        assert work.owners is not None
        for client in clients:
            strangers = set(range(toy.CLASSES)) - set(work.owners.holdings[client].tolist())
            seen.append(client)
            for path, value in tensors.items():
                for line in value.reshape(-1, value.shape[-1]) if value.dim() else ():
                    assert not any(len(line) == rows.shape[1] and torch.equal(line, rows[s]) for s in strangers), path

    class Watched:
        def __init__(self) -> None:
            self.inner = RUNNERS[runner](work)

        def train(self, number: int, origin: Any, received: Any, cohort: Any, memory: Any) -> Any:
            assert "head.weight" not in origin.params
            for client in cohort:
                given = {"origin": origin._asdict(), "received": received, "memory": memory(client)}
                hand_over(flatten(given), [client])
                assert memory(client)["sharing"]["head.weight"].shape == (2, rows.shape[1])
            return self.inner.train(number, origin, received, cohort, memory)

    history.round(Watched(), work, 0, (0, 1))
    assert seen == [0, 1]


def test_a_client_trains_on_labels_of_its_own_counting() -> None:
    local = LocalLabels.of(alone(), toy.CLASSES)
    assert [own.tolist() for own in local.owners.holdings] == [[0, 2], [1, 3]]
    assert set(local[1].targets.tolist()) == {0, 1}
    whole = local.joined([1, 0])
    assert whole is not None
    assert torch.equal(whole.targets, torch.cat([local[1].targets, local[0].targets]))


@pytest.mark.parametrize(
    "method",
    [
        ours.fedprox(mu=0.3), ours.moon(mu=1.0), ours.scaffold(), ours.feddyn(), ours.fedsam(),
        ours.fedsol(rho=0.5), ours.fedadam(), ours.fedavgm(), ours.fedlc(), ours.fednova(), ours.feddecorr(),
    ],
    ids=lambda method: "+".join(part.name for part in method.all_parts())[:60],
)  # fmt: skip
@pytest.mark.parametrize("margin", [None, COS])
def test_goes_with_any_federated_method(method: Algorithm, margin: CosFace | None) -> None:
    work = toy.job(ours.fedgc(margin=margin, strength=0.5).plus(method))
    history = toy.run(work, LATECOMER)
    assert all(torch.isfinite(value).all() for value in history.params.values())
    plain = toy.run(toy.job(ours.fedgc(margin=margin, strength=0.5)), LATECOMER)
    assert toy.distance(history.params, plain.params) > 1e-6
    assert toy.distance(toy.run(work, LATECOMER, "stacked").params, history.params) < 1e-5


def test_a_loss_with_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="must have no running state"):
        ours.fedpe(margin=DynamicAdaCos())


def test_unequal_numbers_of_classes_cannot_be_stacked() -> None:
    data = SeparateClients(
        [toy.replace(one, targets=one.targets.clamp(max=3 - n)) for n, one in enumerate(toy.clients().examples)]
    )
    with pytest.raises(ConfigError, match="for all clients to be stacked"):
        toy.run(toy.job(ours.fedpe(), data=data), runner="stacked")
    assert jobs.Job.classes_of(toy.job(ours.fedpe(), data=data), 2) == 2
