"""Every margin loss in a federation: on every runner, through a checkpoint, and with what is private kept private."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import toy
from fedra.algorithms import fedarc, fedsam
from fedra.core.algorithm import Algorithm
from fedra.core.model import Weights
from fedra.core.tree import flatten, is_finite, unflatten
from fedra.core.view import Server
from fedra.losses import LOSSES
from fedra.runners import RUNNERS

STATEFUL = ("sphereface", "adaface", "curricularface", "adacos-dynamic", "unitsface")
RANDOM = ("elastic-arcface", "elastic-arcface-plus", "elastic-cosface", "elastic-cosface-plus")
LATECOMER = ((0, 1), (1, 2), (0, 2))


def made(name: str, **settings: object) -> Algorithm:
    return fedarc(margin=replace(LOSSES[name](), **settings))


def everything(history: toy.History) -> dict[str, torch.Tensor]:
    """All that is kept anywhere after a run."""
    return flatten(
        {
            "params": history.params,
            "buffers": history.server.weights.buffers,
            "server": history.server.memory,
            "clients": {str(client): memory for client, memory in sorted(history.memory.items())},
            "extras": {str(place): upload.extras for place, upload in enumerate(history.uploads)},
        }
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "mlp") for name in LOSSES), *((name, "conv") for name in (*STATEFUL, "elastic-arcface-plus"))],
)
def test_a_stack_of_clients_trains_as_in_sequence(name: str, kind: str) -> None:
    module = toy.mlp() if kind == "mlp" else toy.conv()
    work = toy.job(made(name), module)
    wanted = everything(toy.run(work, LATECOMER))
    assert is_finite(wanted)
    assert toy.distance(everything(toy.run(work, LATECOMER, "stacked", threads=1)), wanted) < 1e-9


@pytest.mark.parametrize("name", [*STATEFUL, "elastic-arcface-plus"])
def test_processes_give_equal_bits(name: str) -> None:
    work = toy.job(made(name), toy.mlp(torch.float32))
    found = toy.run(work, LATECOMER, "processes", workers=2)
    assert toy.same_bits(everything(found), everything(toy.run(work, LATECOMER)))


@pytest.mark.parametrize("name", [*STATEFUL, *RANDOM])
def test_resumes_to_the_bit(name: str) -> None:
    work = toy.job(made(name), toy.mlp(torch.float32))
    engine, history = RUNNERS["sequential"](work), toy.start(work)
    for number, cohort in enumerate(LATECOMER):
        history.round(engine, work, number, cohort)
        memory = unflatten({path: value.clone() for path, value in flatten(history.server.memory).items()})
        history.server = Server(weights=Weights(dict(history.params), {}), memory=memory)
    assert toy.same_bits(everything(history), everything(toy.run(work, LATECOMER)))


@pytest.mark.parametrize("name", STATEFUL)
def test_the_state_goes_on_from_round_to_round(name: str) -> None:
    """The second round of a client depends on the state the server sends, and on nothing else that was carried."""
    work = toy.job(made(name))
    kept = [flatten(toy.run(work, ((0,),) * rounds).server.memory) for rounds in (1, 2)]
    own = [toy.run(work, ((0,),) * rounds).memory for rounds in (1, 2)]
    states = [{**memory, **flatten(clients.get(0, {}))} for memory, clients in zip(kept, own, strict=True)]
    assert states[0].keys() == states[1].keys() != set()
    assert not any(torch.equal(states[0][path], states[1][path]) for path in states[0] if "threshold" not in path)


def test_the_annealing_counts_the_longest_client_of_each_round() -> None:
    history = toy.run(toy.job(made("sphereface")), ((0, 1, 2), (1, 2)))
    steps = [upload.steps for upload in history.uploads]
    assert steps == [6, 4, 6, 4, 6]
    assert float(history.server.memory["margin-softmax"]["step"]) == 12
    assert [float(upload.extras["margin-softmax"]["step"]) for upload in history.uploads[3:]] == [10, 12]


def test_a_memory_of_features_never_leaves_its_client() -> None:
    history = toy.run(toy.job(made("unitsface")), LATECOMER)
    assert not history.server.memory
    assert not any(upload.extras for upload in history.uploads)
    for memory in history.memory.values():
        assert memory["margin-softmax"]["memory"].any()


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("runner", ["sequential", "stacked"])
def test_two_gradients_in_a_step_advance_the_state_once(name: str, runner: str) -> None:
    """The first step's state is that of the first pass, at the client's own weights, however far the second is."""
    local = replace(toy.LOCAL, epochs=1, batch=None)
    found = [
        toy.run(toy.job(made(name).plus(fedsam(rho=rho)), local=local), ((0,),), runner, threads=1)
        for rho in (0.0, 2.0)
    ]
    states = [{**flatten(one.server.memory), **flatten(one.memory.get(0, {}))} for one in found]
    assert toy.same_bits(*states)
    assert toy.distance(found[0].params, found[1].params) > 1e-3


@pytest.mark.parametrize("name", RANDOM)
def test_margins_are_drawn_from_their_place_alone(name: str) -> None:
    work = toy.job(made(name, scale=8.0))
    first, again = toy.run(work, ((0, 1),)), toy.run(work, ((1, 0),))
    assert toy.same_bits(first.uploads[0].delta, again.uploads[1].delta)
    other = toy.run(toy.job(made(name, scale=8.0, sigma=0.0)), ((0, 1),))
    assert toy.distance(first.uploads[0].delta, other.uploads[0].delta) > 1e-6


@pytest.mark.parametrize("name", [*STATEFUL, *RANDOM])
def test_double_precision_stays_double(name: str) -> None:
    assert all(value.dtype == torch.float64 for value in everything(toy.run(toy.job(made(name)), LATECOMER)).values())
