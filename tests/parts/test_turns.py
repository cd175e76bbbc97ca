"""Head first, then body: what stands still does not move by a bit, and every runner turns at the same step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import toy
from fedra import algorithms as ours
from fedra.algorithms.fedrep import HeadThenBody
from fedra.core.batches import LocalData
from fedra.core.optimizer import Adam, Sgd
from fedra.core.round import begin
from fedra.core.tree import Params, flatten
from fedra.errors import ConfigError
from fedra.experiment.simulate import simulate

LOCAL = replace(toy.LOCAL, epochs=3, batch=4, weight_decay=0.1)


def group(params: Params, prefix: str) -> Params:
    return {name: value.detach().clone() for name, value in params.items() if name.startswith(prefix)}


def test_what_stands_still_keeps_its_bits() -> None:
    work = toy.job(ours.fedrep(head_epochs=2), local=LOCAL)
    data = LocalData(work.clients[0], work.model, LOCAL, toy.CLASSES, toy.SEED, 0, 0)
    program = work.program(0, work.initial(), {})
    client, state = begin(program, {}, data)
    seen = []
    for batch in data:
        before = {prefix: group(state["params"], prefix) for prefix in ("head.", "body.")}
        speeds = {prefix: group(state["optimizer"], prefix) for prefix in ("head.", "body.")}
        program.advance(state, program.step(client, state, batch, {}))
        still, moving = ("body.", "head.") if batch.epoch < 2 else ("head.", "body.")
        assert toy.same_bits(group(state["params"], still), before[still])
        assert toy.same_bits(group(state["optimizer"], still), speeds[still])
        assert not toy.same_bits(group(state["params"], moving), before[moving])
        seen.append(batch.epoch)
    assert seen == [0] * 3 + [1] * 3 + [2] * 3


@pytest.mark.parametrize("module", [toy.mlp, toy.conv], ids=["mlp", "conv"])
def test_a_stack_turns_client_by_client(module: Any) -> None:
    """Clients of 11, 6 and 9 examples have 3, 2 and 3 steps in an epoch: they turn at different steps of the stack."""
    work = toy.job(ours.fedrep(head_epochs=2), module(), local=LOCAL)
    found, wanted = toy.run(work, runner="stacked"), toy.run(work)
    assert toy.distance(found.params, wanted.params) < 1e-12
    for client, memory in wanted.memory.items():
        assert toy.distance(flatten(found.memory[client]), flatten(memory)) < 1e-12


def test_only_the_clients_that_hold_stand_still_in_a_stack() -> None:
    params = {"head.weight": torch.ones(2, 3), "body.weight": torch.ones(2, 3)}
    optimizer = Sgd(0.1, momentum=0.9, weight_decay=0.5)
    state = {name: torch.full_like(value, 2.0) for name, value in params.items()}
    gradient = {name: torch.ones_like(value) for name, value in params.items()}
    held = {"head.weight": torch.tensor([True, False])}
    work = toy.job(ours.fedavg())
    program = work.program(0, work.initial(), {}, optimizer=optimizer)
    both = {"params": params, "optimizer": state}
    program.advance(both, {"gradient": gradient, "held": held})
    state = both["optimizer"]
    moved = 0.9 * 2.0 + 1.0 + 0.5
    assert torch.equal(params["head.weight"][0], torch.ones(3))
    assert torch.equal(state["head.weight"][0], torch.full((3,), 2.0))
    for value in (params["head.weight"][1], *params["body.weight"]):
        assert torch.allclose(value, torch.full((3,), 1 - 0.1 * moved))
    assert torch.allclose(state["head.weight"][1], torch.full((3,), moved))


def test_epochs_for_the_body_must_be_left() -> None:
    with pytest.raises(ConfigError, match=r"local.epochs must be larger than 2 \(head_epochs .*, got 2"):
        ours.fedrep(head_epochs=2).check_training(Sgd(0.1), 2)
    ours.fedrep(head_epochs=2).check_training(Sgd(0.1), 3)
    data = [(torch.zeros(3, 5), torch.tensor([0, 1, 2]))]
    with pytest.raises(ConfigError, match="no epoch is left for the body"):
        simulate(ours.fedrep(), toy.mlp(torch.float32), data, rounds=1)


def test_adam_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local.optimizer must be 'sgd' .* got 'adam'"):
        HeadThenBody().check_training(Adam(0.1), 5)


def test_a_step_without_a_rule_holds_nothing() -> None:
    scene = toy.scene(ours.fedavg())
    assert scene.step()["held"] == {}


@pytest.mark.parametrize("runner", ["sequential", "stacked", "processes"])
def test_fedbabus_head_keeps_its_bits_through_training(runner: str) -> None:
    settings = {"workers": 2} if runner == "processes" else {}
    work = toy.job(ours.fedbabu(), toy.conv(torch.float32))
    history = toy.run(work, ((0, 1), (1, 2), (0, 1, 2)), runner, **settings)
    assert toy.same_bits(group(history.params, "head."), group(work.initial().params, "head."))
    assert not any(name.startswith("head.") for upload in history.uploads for name in upload.delta)
    assert toy.distance(group(history.params, "body."), group(work.initial().params, "body.")) > 1e-3
