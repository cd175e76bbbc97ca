"""The stacked runner trains as the sequential one does, for every algorithm, or says what cannot be stacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn

from fedra.algorithms import ENTRIES, fedavg, feddyn, fednova, fedntd, fedprox, fedsam, fedsol, moon, scaffold
from fedra.algorithms.fedsol import fedsol_ablation
from fedra.core import tree
from fedra.core.algorithm import Algorithm
from fedra.core.batches import AsIs, Examples
from fedra.core.capabilities import ClientState
from fedra.core.job import Job
from fedra.core.model import Model, Output, Weights
from fedra.core.part import GradientFunction, GradientRule, Term
from fedra.core.sharing import Sharing
from fedra.core.tree import Params, Tree
from fedra.core.view import Local, View
from fedra.data.clients import SeparateClients
from fedra.errors import ConfigError, DataError
from fedra.experiment.cohort import FaultRule
from fedra.experiment.plan import Plan
from fedra.experiment.rounds import rounds
from fedra.models.zoo import build
from fedra.parts.objective import ModelContrast
from fedra.runners import RUNNERS
from fedra.runners.stacked_data import LOOKUP_BATCHES
from fedra.storage.state import State
from toy import CLASSES, LOCAL, History, Net, clients, conv, distance, job, mlp, run, start

COHORTS = ((0, 1, 2), (2, 0), (1, 2, 0))

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    **{name: entry.recipe for name, entry in ENTRIES.items()},
    "fedsol head": lambda: fedsol(scope="head"),
    "fedsol adaptive": lambda: fedsol(radius="adaptive"),
    "fedsol adaptive by layer": lambda: fedsol(radius="adaptive", over="layer", scope="body"),
    "fedsol along moon": lambda: fedsol(rho=0.1, proximal=ModelContrast()),
    "fedsol A2": lambda: fedsol_ablation(variant="A2"),
    "fedsol A6": lambda: fedsol_ablation(variant="A6"),
    "fednova correct": lambda: fednova(control="correct"),
    "scaffold by size": lambda: scaffold(size_aware=True),
    "scaffold clipped": lambda: scaffold(clip=0.5),
    "fedprox + fedsam": lambda: fedprox(mu=0.1).plus(fedsam()),
    "moon + feddyn + scaffold": lambda: moon().plus(feddyn(), scaffold()),
    "private head": lambda: fedntd().plus(Sharing(private=("head.",))),
    "frozen head": lambda: scaffold().plus(Sharing(frozen=("head.",))),
}


def relative(left: Params, right: Params) -> float:
    return max(distance({n: v}, {n: right[n]}) / max(1.0, float(v.abs().max())) for n, v in left.items())


def difference(one: History, other: History) -> float:
    """The largest difference in anything: weights, buffers, memories, uploads and their figures.

    Values above one are compared relative to the largest of their tensor.
    """
    found = [relative(one.params, other.params)]
    assert one.memory.keys() == other.memory.keys()
    pairs = [(one.memory[client], other.memory[client]) for client in one.memory]
    pairs += [(one.server.weights.buffers, other.server.weights.buffers)]
    for left, right in zip(one.uploads, other.uploads, strict=True):
        facts = [(u.examples, u.steps, u.effective_steps, u.broken_step) for u in (left, right)]
        assert facts[0] == facts[1]
        assert list(left.metrics) == list(right.metrics)
        found += [abs(value - right.metrics[name]) / max(1, abs(value)) for name, value in left.metrics.items()]
        pairs += [(left.delta, right.delta), (left.buffers, right.buffers), (left.extras, right.extras)]
    for mine, theirs in pairs:
        flat, reference = tree.flatten(mine), tree.flatten(theirs)
        assert list(flat) == list(reference)
        found += [relative(flat, reference)] if flat else []
    return max(found)


def apart(work: Job, cohorts: tuple[tuple[int, ...], ...] = COHORTS, chunk: int | None = None) -> float:
    """How far the stacked runner is from the sequential one on this job."""
    return difference(run(work, cohorts), run(work, cohorts, "stacked", chunk=chunk, threads=1))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_as_in_sequence(name: str) -> None:
    assert apart(job(ALGORITHMS[name]())) < 1e-9


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_in_float32_agrees_but_for_rounding(name: str) -> None:
    assert apart(job(ALGORITHMS[name](), mlp(torch.float32)), ((0, 1, 2),)) < 1e-5


@pytest.mark.parametrize("track", [True, False], ids=["running", "batch"])
@pytest.mark.parametrize("name", ["fedavg", "moon", "fedsam", "fedsol", "scaffold by size", "private head"])
def test_batch_normalization_sees_no_padding(name: str, track: bool) -> None:
    assert apart(job(ALGORITHMS[name](), conv(track=track))) < 1e-9


def test_private_running_statistics_stay_with_their_client() -> None:
    assert apart(job(fedavg().plus(Sharing(private=("body.1.",))), conv())) < 1e-9


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("resnet18", {"norm": "batch", "width": 2}),
        ("resnet18", {"norm": "running", "width": 2}),
        ("resnet18", {"norm": "group", "width": 2}),
        ("fedavg-cnn", {}),
        ("sl-vit", {"resize": False, "width": 8, "depth": 1, "heads": 1}),
    ],
    ids=["resnet18-batch", "resnet18-running", "resnet18-group", "fedavg-cnn", "sl-vit"],
)
def test_models_of_the_papers_can_be_stacked(model: str, settings: dict[str, object]) -> None:
    module = build(model, (1, 8, 8), CLASSES, seed=1, **settings).double()
    data = clients((1, 8, 8), sizes=(12, 6, 10))  # batch statistics of one or two examples mean little
    local = replace(LOCAL, lr=0.01, epochs=2, batch=6)
    work = Job(algorithm=fedprox(mu=0.1), model=Model(module), clients=data, local=local, classes=CLASSES, seed=7)
    assert apart(work, ((0, 1, 2),)) < 1e-9


@pytest.mark.parametrize(
    "local",
    [
        replace(LOCAL, optimizer="adam", lr=0.01),
        replace(LOCAL, momentum=0.0, weight_decay=0.0),
        replace(LOCAL, epochs=3, batch=None),
        replace(LOCAL, epochs=2, batch=4, drop_last=True),
        replace(LOCAL, epochs=1, batch=100),
        replace(LOCAL, epochs=2, batch=1),
    ],
    ids=["adam", "plain", "full-batch", "drop-last", "large-batch", "single"],
)
@pytest.mark.parametrize("module", [mlp, conv])
def test_every_schedule_and_optimizer(local: object, module: Callable[[], Net]) -> None:
    assert apart(replace(job(fedprox(), module()), local=local)) < 1e-9


@dataclass(frozen=True)
class Noisy:
    """Inputs with noise, drawn anew for each batch."""

    deterministic: bool = False

    def prepare(self, inputs: Tensor) -> Tensor:
        return inputs

    def batch(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs + torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)


@pytest.mark.parametrize("name", ["fedavg", "fedntd", "moon"])
@pytest.mark.parametrize("module", [mlp, conv])
def test_augmented_inputs_are_those_of_the_sequence(name: str, module: Callable[[], Net]) -> None:
    net = module()
    shape = (1, 4, 4) if module is conv else (5,)
    assert apart(job(ALGORITHMS[name](), net, clients(shape, transform=Noisy()))) < 1e-9


def test_clients_may_prepare_their_inputs_each_in_its_way() -> None:
    mixed = [
        replace(one, transform=kind) for one, kind in zip(clients().examples, (AsIs(), Noisy(), AsIs()), strict=True)
    ]
    assert apart(job(fedntd(), data=SeparateClients(mixed))) < 1e-9


@pytest.mark.parametrize("chunk", [1, 2, None])
def test_chunks_change_nothing_and_results_keep_the_cohorts_order(chunk: int | None) -> None:
    assert apart(job(moon()), ((2, 1, 0), (1, 0, 2)), chunk) < 1e-9


def asked_before_the_first_result(**settings: float) -> list[int]:
    work, asked = job(fedavg()), []

    def memory(client: int) -> Tree:
        asked.append(client)
        return {}

    runner = RUNNERS["stacked"](work, threads=1, **settings)
    next(runner.train(0, start(work).server.weights, {}, (2, 0, 1), memory))
    return asked


def test_chunks_follow_the_memory() -> None:
    assert sorted(asked_before_the_first_result()) == [0, 1, 2]
    assert asked_before_the_first_result(memory=1e-9) == [2]
    assert sorted(asked_before_the_first_result(chunk=2, memory=1e-9)) == [0, 2]


def test_what_clients_remember_keeps_nothing_else_alive() -> None:
    history = run(job(moon().plus(Sharing(private=("head.",)))), runner="stacked", threads=1)
    sent = {value.untyped_storage().data_ptr() for upload in history.uploads for value in upload.delta.values()}
    for memory in history.memory.values():
        for value in tree.flatten(memory).values():
            assert value.untyped_storage().nbytes() <= 3 * value.nbytes, "the states of three clients"
            assert value.untyped_storage().data_ptr() not in sent


def test_a_loss_that_is_not_finite_is_found_at_the_same_step() -> None:
    own = list(clients().examples)
    own[1] = replace(own[1], inputs=own[1].inputs.index_fill(0, torch.tensor([3]), torch.inf))
    work = job(fedavg(), data=SeparateClients(own))
    expected = [upload.broken_step for upload in run(work, ((0, 1, 2),)).uploads]
    assert expected[0] is None
    assert expected[1] is not None
    assert [u.broken_step for u in run(work, ((0, 1, 2),), "stacked", threads=1).uploads] == expected


@dataclass(frozen=True)
class Watched(GradientRule):
    """Logs the length of the gradient."""

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        slope = inner(params)
        view.log("length", tree.norm(slope))
        return slope


def test_logged_numbers_are_those_of_the_sequence() -> None:
    work = job(fedavg().plus(Watched()))
    assert "length" in run(work, runner="stacked", threads=1).uploads[0].metrics
    assert apart(work) < 1e-9


@pytest.mark.parametrize("seed", [0, 1])
def test_global_generators_are_left_alone(seed: int) -> None:
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        before = torch.random.get_rng_state()
        run(job(fedsol()), ((0, 1, 2),), "stacked", threads=1)
        assert torch.equal(torch.random.get_rng_state(), before)


def test_evaluation_is_the_sequential_one() -> None:
    work = job(fedavg())
    weights = work.model.weights()
    counts = [RUNNERS[name](work, threads=1).evaluate(weights) for name in ("sequential", "stacked")]
    assert counts[0].loss == counts[1].loss
    assert torch.equal(counts[0].correct, counts[1].correct)


@dataclass(frozen=True)
class Stubborn(Term):
    """Looks at a number, which no stack of clients has."""

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        loss = output.logits.square().mean()
        return loss * 2 if loss.item() > 1 else loss


def test_a_part_that_cannot_be_stacked_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the part 'stubborn' cannot be stacked \(.*use the runner 'processes'"):
        run(job(fedavg().plus(Stubborn())), runner="stacked", threads=1)


@dataclass(frozen=True)
class Diary(GradientRule, ClientState):
    """Remembers the last round only after it: a new client has nothing."""

    def gradient(self, inner: GradientFunction, params: Params, view: View) -> Params:
        return inner(params)

    def finish_client(self, local: Local) -> tuple[Tree, Tree]:
        return {"steps": torch.tensor([local.steps])}, {}


def test_memories_of_different_shapes_are_refused() -> None:
    work = job(fedavg().plus(Diary()))
    assert apart(work, ((0, 1, 2), (0, 1, 2))) < 1e-9
    with pytest.raises(ConfigError, match="client state of the part 'diary' must have the same names and shapes"):
        run(work, ((0, 1), (0, 1, 2)), "stacked", threads=1)


def test_a_layer_that_cannot_be_stacked_is_named() -> None:
    net = mlp()
    net.body.append(nn.Dropout(0.5))
    with pytest.raises(ConfigError, match=r"the model's layer 'body\.2' \(Dropout\) cannot be stacked"):
        run(job(fedavg(), net), runner="stacked", threads=1)


def test_other_faults_keep_their_own_words_and_say_where() -> None:
    wrong = SeparateClients([replace(one, inputs=one.inputs[:, :3]) for one in clients().examples])
    with pytest.raises(RuntimeError, match="size") as caught:
        run(job(fedavg(), data=wrong), runner="stacked", chunk=3, threads=1)
    assert any("in round 1" in note for note in caught.value.__notes__)


def test_a_client_without_examples_is_refused() -> None:
    own = list(clients().examples)
    own[2] = Examples(own[2].inputs[:0], own[2].targets[:0])
    with pytest.raises(DataError, match="at least one example, got none for client 2"):
        run(job(fedavg(), data=SeparateClients(own)), runner="stacked", chunk=3, threads=1)


@dataclass(frozen=True)
class Careless(Term):
    """Takes its mean over padding too."""

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return output.logits.square().mean()


def test_a_part_that_looks_at_padding_is_refused() -> None:
    with pytest.raises(ConfigError, match="but one of cross-entropy, careless depends on it"):
        run(job(fedavg().plus(Careless())), runner="stacked", threads=1)


def test_without_padding_every_mean_is_right() -> None:
    equal = clients(sizes=(8, 8, 8))
    assert apart(job(fedavg().plus(Careless()), data=equal)) < 1e-9


@pytest.mark.parametrize("transform", [AsIs(), Noisy()], ids=["looked up", "at every step"])
def test_teachers_speak_once_a_round_where_inputs_repeat(transform: object, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (LOOKUP_BATCHES + 1) * LOCAL.batch
    work = job(fedntd(), data=clients(sizes=(size, size), transform=transform), local=LOCAL)  # type: ignore[arg-type]
    heard, output = [], work.model.output
    monkeypatch.setattr(work.model, "output", lambda weights, inputs: heard.append(1) or output(weights, inputs))
    run(work, ((0, 1),), runner="stacked", chunk=2, threads=1)
    assert LOCAL.epochs > 1
    assert len(heard) == (2 if transform == AsIs() else len(LOCAL.batch_ranges(size)) * LOCAL.epochs)


def test_a_stack_gets_threads_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = import_module("fedra.runners.stacked")  # the package's attribute of that name is the function
    monkeypatch.setattr(runner, "default_workers", lambda: 4)
    weights = Weights({"w": torch.zeros(2**10, 2**8)}, {})
    assert [runner._threads(clients, weights) for clients in (1, 4, 9, 1000)] == [1, 1, 2, 4]


@pytest.mark.parametrize("broken", [[], [1], [0, 2]])
def test_a_stack_is_folded_without_its_broken_uploads(broken: list[int]) -> None:
    """A round by the stacked runner is the round of its sound clients."""
    own = list(clients().examples)
    for client in broken:
        own[client] = replace(own[client], inputs=own[client].inputs * torch.inf)
    work = job(scaffold(), data=SeparateClients(own))
    sound = tuple(client for client in range(3) if client not in broken)
    state = State.fresh(work)
    plan = Plan(1, faults=FaultRule(quorum=0.0, retries=0))
    report = next(iter(rounds(work, RUNNERS["stacked"](work, threads=1), plan, state)))
    assert [line["client"] for line in report.clients if "dropped" in line] == broken
    assert set(state.memory) == set(sound)
    assert relative(state.server.weights.params, run(work, (sound,)).params) < 1e-9
