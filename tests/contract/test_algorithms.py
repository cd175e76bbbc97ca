"""What every registered algorithm must keep to; a new one is tested here by being registered."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import toy
from fedra.algorithms import ENTRIES, fedavg, fedpe, fedsol
from fedra.algorithms.fedfs import IntraSubject
from fedra.algorithms.fedgc import PushApart
from fedra.algorithms.fednova import NovaDirection
from fedra.algorithms.fedprox import Proximal
from fedra.algorithms.scaffold import ControlVariates
from fedra.core.algorithm import Algorithm
from fedra.core.model import Weights
from fedra.core.part import Term, known_parts
from fedra.core.sharing import Sharing
from fedra.core.tree import Params, Tree, flatten, select, unflatten
from fedra.core.view import Server
from fedra.parts.objective import DynamicRegularizer, ModelContrast
from fedra.parts.twin import Twin
from fedra.runners import RUNNERS

NAMES = tuple(ENTRIES)
SHORT = replace(toy.LOCAL, epochs=1, batch=6)
EVERYONE = ((0, 1, 2), (0, 1, 2))
LATECOMER = ((0, 1), (1, 2), (0, 2))
BIT_EQUAL = {"processes": {"workers": 2}}
"""Runners whose results are the reference's to the bit, and their settings here; others agree to TOLERANCE."""
TOLERANCE = 1e-5
OTHERS = [name for name in RUNNERS if name not in ("sequential", "centralized", "auto", "ray")]
"""The runners of federations; centralized training has no clients, auto is one of these, Ray's start is slow."""


def made(name: str) -> Algorithm:
    return ENTRIES[name].recipe()


@cache
def reference(name: str, kind: str = "mlp") -> toy.History:
    module = toy.mlp(torch.float32) if kind == "mlp" else toy.conv(torch.float32)
    return toy.run(toy.job(made(name), module), LATECOMER)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_two_runs_have_equal_bits(name: str, kind: str) -> None:
    with torch.random.fork_rng():
        torch.random.manual_seed(99)  # a draw from the global generator would show
        module = toy.mlp(torch.float32) if kind == "mlp" else toy.conv(torch.float32)
        again = toy.run(toy.job(made(name), module), LATECOMER)
    first = reference(name, kind)
    assert toy.same_bits(again.params, first.params)
    assert toy.same_bits(again.server.weights.buffers, first.server.weights.buffers)
    assert toy.same_bits(flatten(again.server.memory), flatten(first.server.memory))
    assert [upload.metrics for upload in again.uploads] == [upload.metrics for upload in first.uploads]


@pytest.mark.parametrize("name", NAMES)
def test_pickles(name: str) -> None:
    assert pickle.loads(pickle.dumps(made(name))) == made(name)


def stored(values: Tree) -> Tree:
    """As a checkpoint would give it back: flat names, contiguous bytes, no empty branches."""
    flat = {path: value.contiguous().numpy() for path, value in flatten(values).items()}
    return unflatten({path: torch.from_numpy(value.copy()) for path, value in flat.items()})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_resumes_to_the_bit(name: str, kind: str) -> None:
    work = toy.job(made(name), toy.mlp(torch.float32) if kind == "mlp" else toy.conv(torch.float32))
    engine = RUNNERS["sequential"](work)
    history = toy.start(work)
    for number, cohort in enumerate(LATECOMER):
        history.round(engine, work, number, cohort)
        weights = Weights(stored(history.params), stored(history.server.weights.buffers))
        history.server = Server(weights=weights, memory=stored(history.server.memory))
        history.memory = {client: stored(memory) for client, memory in history.memory.items()}
    assert toy.same_bits(history.params, reference(name, kind).params)
    assert toy.same_bits(history.server.weights.buffers, reference(name, kind).server.weights.buffers)


@pytest.mark.parametrize("name", [name for name in NAMES if ENTRIES[name].neutral is not None])
def test_is_fedavg_at_zero_strength(name: str) -> None:
    entry = ENTRIES[name]
    plain = reference("fedavg").params
    work = toy.job(entry.recipe(**entry.neutral or {}), toy.mlp(torch.float32))
    neutral = select(toy.run(work, LATECOMER).params, plain)  # parts may bring parameters of their own
    if made(name).server:  # the server's own arithmetic rounds once more
        assert toy.distance(neutral, plain) < 1e-6
    else:
        assert toy.same_bits(neutral, plain)


@pytest.mark.parametrize("name", [name for name in NAMES if ENTRIES[name].neutral != {}])
def test_is_not_fedavg_otherwise(name: str) -> None:
    plain = reference("fedavg").params
    assert toy.distance(select(reference(name).params, plain), plain) > 1e-6


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(made(name).personalize, Twin)])
def test_a_twin_only_looks_on(name: str) -> None:
    """Its passes do not even move the stream that the model's dropout draws from."""
    both = (made(name), replace(made(name), personalize=None))
    found, alone = (toy.run(toy.job(one, toy.forgetful(torch.float32)), LATECOMER) for one in both)
    assert toy.same_bits(found.params, alone.params)


@pytest.mark.parametrize("name", NAMES)
def test_double_precision_stays_double(name: str) -> None:
    history = toy.run(toy.job(made(name), toy.conv()))
    trees = [history.params, history.server.weights.buffers, flatten(history.server.memory)]
    trees += [flatten(memory) for memory in history.memory.values()]
    trees += [{**upload.delta, **upload.buffers, **flatten(upload.extras)} for upload in history.uploads]
    for values in trees:
        for path, value in values.items():
            assert value.dtype == (torch.int64 if path.endswith("num_batches_tracked") else torch.float64), path


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_travels_or_stays_carries_a_graph(name: str) -> None:
    history = reference(name, "conv")
    trees = [history.params, flatten(history.server.memory), *(flatten(own) for own in history.memory.values())]
    trees += [{**upload.delta, **upload.buffers, **flatten(upload.extras)} for upload in history.uploads]
    assert not any(value.requires_grad for values in trees for value in values.values())


@pytest.mark.parametrize("name", NAMES)
def test_memory_and_origin_are_only_read(name: str) -> None:
    """What a client was given has the same bits after training: parts are pure, steps in place are its own."""
    work = toy.job(made(name), toy.conv(torch.float32))
    engine = RUNNERS["sequential"](work)
    history = toy.start(work)
    history.round(engine, work, 0, (0, 1, 2))
    kept = {client: flatten(memory) for client, memory in history.memory.items()}
    kept[-1] = flatten({"server": history.server.memory, "weights": history.server.weights._asdict()})
    copies = {owner: {path: value.clone() for path, value in values.items()} for owner, values in kept.items()}
    history.round(engine, work, 1, (0, 1, 2))
    assert all(toy.same_bits(kept[owner], copies[owner]) for owner in kept)


@pytest.mark.parametrize("name", NAMES)
def test_clients_do_not_see_each_other(name: str) -> None:
    """A client's upload is the same whoever trained before it in this process."""
    work = toy.job(made(name), toy.conv(torch.float32))
    alone, after = toy.run(work, ((2,),)), toy.run(work, ((0, 1, 2),))
    assert toy.same_bits(alone.uploads[0].delta, after.uploads[2].delta)
    assert toy.same_bits(alone.uploads[0].buffers, after.uploads[2].buffers)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
@pytest.mark.parametrize("runner", OTHERS)
def test_every_runner_agrees(runner: str, kind: str, name: str) -> None:
    module = toy.mlp if kind == "mlp" else toy.conv
    if runner in BIT_EQUAL:
        found = toy.run(toy.job(made(name), module(torch.float32)), LATECOMER, runner, **BIT_EQUAL[runner])
        wanted = reference(name, kind)
        assert toy.same_bits(found.params, wanted.params)
        assert toy.same_bits(found.server.weights.buffers, wanted.server.weights.buffers)
    else:
        work = toy.job(made(name), module(), local=SHORT)
        found, wanted = toy.run(work, EVERYONE, runner), toy.run(work, EVERYONE)
        assert toy.distance(found.params, wanted.params) < TOLERANCE
        buffers = wanted.server.weights.buffers
        assert not buffers or toy.distance(found.server.weights.buffers, buffers) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_nothing_private_or_frozen_is_uploaded(name: str) -> None:
    algorithm = replace(made(name), sharing=Sharing(("body.1.",), ("head.bias",), made(name).sharing.owned))
    work = toy.job(algorithm, toy.conv())
    history = toy.run(work)
    for upload in history.uploads:
        sent = [*upload.delta, *upload.buffers, *flatten(upload.extras)]
        assert not [path for path in sent if "body.1." in path or "head.bias" in path]
    first = work.initial()
    for path in ("body.1.weight", "head.bias"):
        assert torch.equal(history.params[path], first.params[path])
    assert torch.equal(history.server.weights.buffers["body.1.running_mean"], first.buffers["body.1.running_mean"])
    own = [memory["sharing"] for memory in history.memory.values()]
    for path in ("body.1.weight", "body.1.running_mean"):
        assert not torch.equal(own[0][path], own[1][path])


@pytest.mark.parametrize("sharing", [Sharing(("head.",)), Sharing(("body.1.",)), Sharing(frozen=("body.",))])
@pytest.mark.parametrize("runner", OTHERS)
def test_every_runner_keeps_what_is_private(runner: str, sharing: Sharing) -> None:
    work = toy.job(replace(made("moon"), sharing=sharing), toy.conv(), local=SHORT)
    found, wanted = toy.run(work, LATECOMER, runner), toy.run(work, LATECOMER)
    assert toy.distance(found.params, wanted.params) < TOLERANCE
    assert toy.distance(found.server.weights.buffers, wanted.server.weights.buffers) < TOLERANCE
    for client, memory in wanted.memory.items():
        assert toy.distance(flatten(found.memory[client]), flatten(memory)) < TOLERANCE
    assert [{*upload.delta, *upload.buffers} for upload in found.uploads] == [
        {*upload.delta, *upload.buffers} for upload in wanted.uploads
    ]


@pytest.mark.parametrize("term", [ControlVariates(), DynamicRegularizer(), NovaDirection()], ids=lambda term: term.name)
def test_private_parameters_are_not_corrected(term: Term) -> None:
    """There is no mean course of a private parameter: subtracting its own would only stop it."""
    history = toy.run(toy.job(fedavg().plus(term, Sharing(private=("head.",)))), ((0, 1, 2),) * 3)
    for memory in history.memory.values():
        own = next(iter(memory[term.name].values()))
        assert not own["head.weight"].any()
        assert own["body.0.weight"].any()


def terms() -> list[Term]:
    """Every known term that can be made without arguments."""
    kinds = [kind for kind in known_parts().values() if issubclass(kind, Term) and kind.__module__.startswith("fedra.")]
    made = [kind() for kind in kinds if "__dataclass_fields__" in vars(kind)]
    # What is constant in a gradient has no finite differences: labels here depend on the frozen model alone.
    differentiable: dict[str, Any] = {"label_source": "frozen", "length_gradient": True}
    return [replace(term, **differentiable) if isinstance(term, IntraSubject) else term for term in made]


@pytest.mark.parametrize("scope", ["all", "head", "body"])
@pytest.mark.parametrize("term", terms(), ids=lambda term: term.name)
def test_gradients_against_finite_differences(term: Term, scope: str) -> None:
    """A term's gradient = autograd's of its loss = central differences of its loss."""
    start = fedpe(kept=True) if isinstance(term, PushApart) else fedavg()
    scene = toy.scene(start.plus(term), stir=0.3)
    view, params = scene.view(), scene.params
    found = view.gradient([term], params, scope)
    assert set(found) == set(view.names(scope))

    def loss(at: Params) -> torch.Tensor:
        output = scene.work.model.output(Weights(at, scene.buffers), scene.batch.inputs, train=True)
        return term.loss(output, at, view)

    leaves = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
    slopes = torch.autograd.grad(loss(leaves), list(leaves.values()), materialize_grads=True)
    wanted = dict(zip(leaves, slopes, strict=True))
    assert toy.distance(found, {name: wanted[name] for name in found}) < 1e-12
    with torch.no_grad():
        for name, slope in found.items():
            at = {key: value.detach().clone() for key, value in params.items()}
            flat, step = at[name].view(-1), 1e-6
            for place in (0, len(flat) // 2, len(flat) - 1):
                middle = float(flat[place])
                flat[place] = middle + step
                above = float(loss(at))
                flat[place] = middle - step
                below = float(loss(at))
                flat[place] = middle
                assert float(slope.view(-1)[place]) == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    "term", [Proximal(), ModelContrast(), ControlVariates(), DynamicRegularizer(), NovaDirection()]
)
def test_a_perturbed_pass_leaves_no_trace_in_the_statistics(term: Term) -> None:
    """The running statistics of a round do not depend on how far gradients are perturbed in its first step."""
    found = [stepped(fedsol(rho=rho, proximal=term)) for rho in (0.0, 5.0)]
    assert toy.same_bits(*found)


def stepped(algorithm: Algorithm) -> Params:
    scene = toy.scene(algorithm, toy.conv(), stir=0.2)
    scene.step()
    assert int(scene.buffers["body.1.num_batches_tracked"]) == 1
    return scene.buffers
