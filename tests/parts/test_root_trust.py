"""Root trust: the rule against a plain loop, where the server's examples come from, attacks and refusals."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import fedra
import toy
from fedra.algorithms import fedavg, fedpe, fedper, scaffold
from fedra.core.job import run_client
from fedra.core.root_update import train_root
from fedra.core.round import Fold, broadcast
from fedra.core.uploads import Uploads
from fedra.core.view import Upload
from fedra.data.clients import SeparateClients
from fedra.errors import ConfigError, RunError
from fedra.parts import RootTrust


def upload(row, buffers=()):
    delta = {"a": row[:3].clone(), "b": row[3:].view(3, -1).clone()}
    kept = {"mean": torch.tensor(buffers)} if buffers else {}
    return Upload(delta=delta, buffers=kept, examples=10, steps=1, effective_steps=1.0, extras={}, metrics={})


def combined(rows, root, order=None):
    rule = RootTrust()
    total = {**rule.start(), "root": upload(root)}
    for row in rows if order is None else rows[order]:
        total = rule.add(total, upload(row))
    change = rule.finish(total).params
    return torch.cat([change["a"], change["b"].flatten()])


def vectors(count=11, seed=0):
    return torch.randn(count, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def naive(rows, root):
    """Algorithm 2 of the paper, client by client."""
    total, trusted = torch.zeros_like(root), 0.0
    for row in rows:
        score = max(0.0, float(row @ root) / (float(row.norm()) * float(root.norm())))
        total, trusted = total + score * row * float(root.norm()) / float(row.norm()), trusted + score
    return total / trusted


def test_equal_to_a_plain_loop_in_any_order():
    rows, root = vectors(), vectors(1, seed=5)[0]
    scores = rows @ root
    assert (scores < 0).any()
    assert (scores > 0).sum() > 2
    assert torch.allclose(combined(rows, root), naive(rows, root), atol=1e-12)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(combined(rows, root, order), naive(rows, root), atol=1e-12)


def test_the_length_of_an_update_does_not_matter_and_the_result_is_no_longer_than_the_root_update():
    rows, root = vectors(), vectors(1, seed=5)[0]
    longer = rows * torch.logspace(-3, 12, len(rows), dtype=torch.float64)[:, None]
    assert torch.allclose(combined(longer, root), combined(rows, root), atol=1e-9)
    assert combined(rows, root).norm() <= root.norm() * (1 + 1e-12)


def test_a_majority_against_the_root_update_counts_nothing():
    rows, root = vectors(), vectors(1, seed=5)[0]
    good = rows[rows @ root > 0]
    bad = -50 * root + vectors(3 * len(good), seed=9)
    assert torch.allclose(combined(torch.cat([good, bad]), root), combined(good, root), atol=1e-12)


def test_without_any_trust_the_model_stays():
    root = vectors(1, seed=5)[0]
    assert not combined(-root.expand(3, -1), root).any()
    assert not combined(torch.zeros(3, 9, dtype=torch.float64), root).any()
    assert not combined(vectors(3), torch.zeros_like(root)).any()
    rule = RootTrust()
    total = rule.add({"root": upload(root, (1.0, 2.0))}, upload(-root, (7.0, 7.0)))
    assert rule.finish(total).buffers["mean"].tolist() == [1.0, 2.0]  # of the server's own pass, not of a stranger


def test_a_fold_without_a_root_update_says_so():
    rule = RootTrust()
    with pytest.raises(RunError, match="needs the root update"):
        rule.finish(rule.add(rule.start(), upload(vectors(1)[0])))


@pytest.mark.parametrize("start", [fedavg(), scaffold()], ids=["fedavg", "scaffold"])
def test_the_server_trains_as_one_more_client(start):
    """The root update = the update of a new client with the server's examples; nobody counts it."""
    algorithm = start.plus(RootTrust())
    data = toy.clients(sizes=(11, 6, 9, 8))
    root = data.examples[3]
    four = toy.job(algorithm, data=data)
    three = replace(toy.job(algorithm, data=SeparateClients(data.examples[:3])), root=root)
    server = toy.start(three).server
    found = train_root(three, server, 1)
    assert found is not None
    sent = broadcast(algorithm, server)
    _, wanted = run_client(four, 1, 3, server.weights, sent, {})
    assert toy.same_bits(found.delta, wanted.delta)
    assert three.population.clients == 3
    fold, plain = Fold(algorithm, found), []
    for client in range(3):
        _, one = run_client(three, 1, client, server.weights, sent, {})
        plain.append(one.delta)
        fold.add_stack(Uploads.of(one))
    after = fold.finish(server, three.population)

    def flat(values):
        return torch.cat([value.flatten() for value in values.values()])

    moved = flat(after.weights.params) - flat(server.weights.params)
    assert torch.allclose(moved, naive([flat(one) for one in plain], flat(found.delta)), atol=1e-12)


def test_other_rules_train_nothing_on_the_server():
    work = toy.job(fedavg())
    assert train_root(work, toy.start(work).server, 0) is None


CONFIG = {
    "rounds": 6,
    "data": {"name": "digits", "fraction": 0.5},
    "partition": {"name": "iid", "clients": 8},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"lr": 0.2, "epochs": 3},
    "runner": {"name": "sequential"},
}
TRUST = {"name": "fedavg", "plus": [{"name": "root-trust", "share": 0.1}]}


def test_examples_of_the_server_are_taken_from_the_clients():
    plain, trusting = (
        fedra.experiment.build.build(fedra.config.reading.read({**CONFIG, "algorithm": one})).job
        for one in ("fedavg", TRUST)
    )
    sizes = [[job.clients.size(client) for client in range(8)] for job in (plain, trusting)]
    assert plain.root is None
    assert sum(sizes[0]) - sum(sizes[1]) == len(trusting.root)
    assert len(trusting.root) == pytest.approx(0.1 * sum(sizes[0]), rel=0.1)
    left = {tuple(row) for client in range(8) for row in trusting.clients[client].inputs.flatten(1).tolist()}
    assert not left & {tuple(row) for row in trusting.root.inputs.flatten(1).tolist()}


@pytest.mark.parametrize("attack", ["sign-flip", "label-flip"])
def test_it_withstands_a_majority_that_ruins_the_mean(attack):
    table = {**CONFIG, "attack": {"name": attack, "share": 0.6, "scale": 5.0}}
    mean = fedra.run(table).summary["final_accuracy"]
    trust = [fedra.run({**table, "algorithm": TRUST, "runner": {"name": one}}) for one in ("sequential", "stacked")]
    assert trust[0].summary["final_accuracy"] > mean + 0.2
    for one, other in pairwise(trust):
        for name, value in one.model.state_dict().items():
            assert torch.allclose(other.model.state_dict()[name], value, atol=1e-3), name


REFUSED = {
    "privacy of clients": ({"privacy": {"level": "client", "delta": 1e-3, "noise": 1.0}}, "needs single uploads"),
    "privacy of examples": (
        {"privacy": {"level": "example", "delta": 1e-4, "noise": 1.0}, "local": {"lr": 0.1, "sampling": "poisson"}},
        "trains on the server too",
    ),
    "secure": ({"secure": {"aggregation": "masks", "bound": 2.0}}, "needs single uploads"),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        fedra.run({**CONFIG, "algorithm": TRUST, **changes})


def test_layers_that_belong_to_clients_are_refused():
    for algorithm in (fedper(), fedpe(), fedpe(kept=True)):
        with pytest.raises(ConfigError, match="that all clients share"):
            algorithm.plus(RootTrust())
