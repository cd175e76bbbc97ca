"""The runner that suits a job: its rules, its trial, and that neither leaves a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import toy
from fedra.algorithms import fedavg, moon, scaffold
from fedra.core.job import Job
from fedra.core.model import Output
from fedra.core.part import Term
from fedra.core.tree import Params
from fedra.core.view import View
from fedra.runners import RUNNERS, Choice, choose
from fedra.runners import auto as rules
from fedra.runners.calibration import CLIENTS, STEPS, FewClients, Trial
from fedra.runners.processes import ProcessRunner
from fedra.runners.sequential import SequentialRunner
from fedra.runners.stacked import StackedRunner


class FakeTrial:
    """A trial with known times; asking for a stack that must not be asked for is an error."""

    def __init__(self, job: Job, cohort: int) -> None:
        self.job, self.clients = job, min(cohort, CLIENTS)
        self.compiled = self.has_public = False

    single: ClassVar[float] = 0.01
    stacked: ClassVar[float | None] = None
    threaded: ClassVar[float] = 0.01
    operations: ClassVar[float] = 1e6
    operations_per_step: ClassVar[float] = 1e5
    fits: ClassVar[bool] = True

    def stackable(self) -> bool:
        assert self.stacked is not None, "nobody should try a stack here"
        return self.fits

    def sequential(self, threads: int) -> float:
        return self.threaded

    def traffic(self) -> int:
        return 1000


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_up(**times: Any) -> None:
        monkeypatch.setattr(rules, "Trial", type("Fake", (FakeTrial,), times))

    return set_up


def work(rounds: int = 1000, module: toy.Net | None = None) -> Job:
    return toy.job(fedavg(), module or toy.mlp(torch.float32), local=replace(toy.LOCAL, rounds=rounds))


def select(choice: Choice) -> tuple[str, dict[str, Any]]:
    return choice.runner, choice.settings


ONE_THREAD = {"threads": 1}


def test_one_client_a_round_on_one_core_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "Trial", None)
    assert select(choose(work(), cohort=1, cores=1)) == ("sequential", ONE_THREAD)


@pytest.mark.parametrize(("threaded", "threads"), [(0.004, 8), (0.009, 1)])
def test_one_client_a_round_takes_all_cores_if_that_clearly_helps(fake: Any, threaded: float, threads: int) -> None:
    fake(threaded=threaded)
    assert select(choose(work(), cohort=1, cores=8)) == ("sequential", {"threads": threads})


def test_a_short_run_stays_sequential(fake: Any) -> None:
    fake(single=0.01)
    choice = choose(work(rounds=10), cohort=20, cores=8)
    assert select(choice) == ("sequential", ONE_THREAD)
    assert "about 2.0 s of training in total" in choice.reason


@pytest.mark.parametrize(
    ("cohort", "cores", "wanted"),
    [
        (100, 8, ("processes", {"workers": 8, "threads": 1})),
        (3, 8, ("processes", {"workers": 3, "threads": 1})),
        (100, 1, ("sequential", {"threads": 1})),
        (1, 8, ("sequential", {"threads": 8})),
    ],
)
def test_long_steps_are_shared_out_without_a_trial(
    fake: Any, cohort: int, cores: int, wanted: tuple[str, dict[str, int]]
) -> None:
    fake(single=None, operations=1e11, operations_per_step=1e9)
    choice = choose(work(), cohort, cores)
    assert select(choice) == wanted
    assert choice.reason == "1 GFLOP per step: no calibration needed"


@pytest.mark.parametrize(
    ("stacked", "fits", "runner"),
    [(0.0001, True, "stacked"), (0.0001, False, "processes"), (0.0012, True, "processes")],
)
def test_a_stack_must_clearly_win_and_agree(fake: Any, stacked: float, fits: bool, runner: str) -> None:
    """A pool of eight takes 0.01 / 8 + 0.0003 = 0.0016 s a client: a stack needs 1.5 times less."""
    fake(stacked=stacked, fits=fits)
    assert choose(work(), cohort=80, cores=8).runner == runner


def test_the_line_says_what_was_seen(fake: Any) -> None:
    fake(single=0.0019, stacked=0.0002)
    assert str(choose(work(), cohort=8, cores=1)) == (
        "stacked, 1 thread (calibrated on 8 clients: sequential 1.9 ms, stacked 0.2 ms per client)"
    )
    fake(single=2.5, stacked=2.5)
    assert str(choose(work(), cohort=8, cores=2)) == (
        "processes, 2 workers, 1 thread each (calibrated on 8 clients: sequential 2.5 s, processes about 1.3 s, "
        "stacked 2.5 s per client)"
    )


def test_a_message_dearer_than_the_client_keeps_the_pool_away(fake: Any) -> None:
    fake(single=0.0003, stacked=0.0003)
    assert choose(work(), cohort=80, cores=8).runner == "sequential"


def test_no_stack_of_convolutions_on_a_cpu(fake: Any) -> None:
    fake()  # a stack must not even be tried
    assert choose(work(module=toy.conv(torch.float32)), cohort=80, cores=1).runner == "sequential"


def test_on_a_gpu_never_a_pool(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_on_cpu", lambda job: False)
    fake(stacked=0.02, operations=1e12, operations_per_step=1e10)
    assert select(choose(work(), cohort=80, cores=8)) == ("sequential", ONE_THREAD)
    fake(stacked=0.001, operations=1e12, operations_per_step=1e10)
    assert choose(work(module=toy.conv(torch.float32)), cohort=80, cores=8).runner == "stacked"


def test_what_is_compiled_is_not_stacked(fake: Any) -> None:
    fake(__init__=lambda self, job, cohort: self.__dict__.update(job=job, clients=8, compiled=True))
    assert choose(work(), cohort=80, cores=1).runner == "sequential"


@dataclass(frozen=True)
class ToyLooks(Term):
    """Looks at a number, which no stack allows."""

    formula: ClassVar[str] = "none"

    def loss(self, output: Output, params: Params, view: View) -> Tensor:
        return output.logits.sum() * (0.0 if float(output.logits.detach().sum()) > 0 else 0.1)


class Crowd(nn.Module):
    """An example's output depends on its neighbors, padding too: nothing refuses it, but a stack goes wrong."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(dim=0)


@pytest.mark.parametrize("algorithm", [fedavg(), moon(), scaffold()], ids=["fedavg", "moon", "scaffold"])
def test_what_can_be_stacked_is_seen_to_agree(algorithm: Any) -> None:
    assert Trial(toy.job(algorithm, toy.mlp(torch.float32)), 3).stackable()


def test_what_cannot_be_stacked_is_no_candidate() -> None:
    assert not Trial(toy.job(fedavg().plus(ToyLooks()), toy.mlp(torch.float32)), 3).stackable()


def test_a_stack_that_would_give_something_else_is_no_candidate() -> None:
    module = toy.mlp(torch.float32)
    module.body = nn.Sequential(module.body, Crowd())
    assert not Trial(toy.job(fedavg(), module), 3).stackable()


def test_another_job_that_cannot_be_stacked_keeps_the_stack_away(fake: Any) -> None:
    fake(stacked=0.0001, stackable=lambda self: not any(isinstance(p, ToyLooks) for p in self.job.algorithm.objective))
    assert choose(work(), 80, cores=1).runner == "stacked"
    assert choose(work(), 80, cores=1, also=(toy.job(fedavg().plus(ToyLooks())),)).runner == "sequential"


def test_a_job_that_fails_is_left_to_the_run_to_tell() -> None:
    broken = replace(work(), algorithm=scaffold(), local=replace(toy.LOCAL, optimizer="adam"))
    choice = choose(broken, cohort=3, cores=1)
    assert select(choice) == ("sequential", ONE_THREAD)
    assert choice.reason == "calibration failed with ConfigError"


def test_a_trial_leaves_no_trace() -> None:
    """The job's weights, the generators, the threads and the module's mode are as they were."""
    module = toy.conv(torch.float32)
    job = toy.job(moon(), module)
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    state, count, module.training = torch.random.get_rng_state(), torch.get_num_threads(), True
    trial = Trial(job, 3)
    assert trial.single > 0
    assert trial.stackable()
    assert trial.stacked > 0
    assert trial.operations > 0
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == count
    assert module.training
    assert toy.same_bits(module.state_dict(), weights)
    assert not [hook for layer in module.modules() for hook in layer._forward_hooks]


def test_a_trial_takes_large_and_small_clients_cut_to_a_few_steps() -> None:
    sizes = (40, *[9] * 29, 23, 23, 4)
    job = replace(toy.job(fedavg(), data=toy.clients(sizes=sizes)), local=replace(toy.LOCAL, epochs=5, batch=4))
    few = FewClients.of(job, count=100)
    assert len(few) == CLIENTS
    assert few.chosen[0] == 0  # the largest
    assert len(set(few.chosen)) == CLIENTS
    assert few.size(0) == STEPS * 4  # 40 is whole batches
    assert few.size(1) == 2 * 4 + 3  # 23: two batches, and the incomplete one
    assert few.size(2) == 9
    assert len(few[0]) == len(few[0].inputs) == few.size(0)
    joined = few.joined([1, 0])
    assert joined is not None
    assert torch.equal(joined.targets, torch.cat([few[1].targets, few[0].targets]))


def test_arithmetic_is_counted_layer_by_layer() -> None:
    """5 x 6 and 6 x 4 weights, two operations each, three passes; clients of 11, 6 and 9 examples in two epochs."""
    trial = Trial(toy.job(fedavg(), toy.mlp(torch.float32)), 3)
    assert trial.operations == pytest.approx(3 * 2 * (5 * 6 + 6 * 4) * 2 * 26 / 3)
    images = toy.job(fedavg(), toy.conv(torch.float32))
    per_example = 2 * (3 * 9 * 4 + 12 * 4)  # three kernels of nine at four places, then the head
    assert Trial(images, 3).operations == pytest.approx(3 * per_example * 2 * 26 / 3)


def test_a_whole_client_is_reckoned_from_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(work(), local=replace(toy.LOCAL, epochs=10, batch=4))
    trial = Trial(job, 3)
    tried: list[Sequence[int]] = []

    def seconds(self: Trial, runner: Any, clients: Sequence[int]) -> float:
        tried.append(list(clients))
        return 0.08 * len(clients) if len(tried) > 1 else 9.0  # the first pass is slow, and not counted

    monkeypatch.setattr(Trial, "_seconds", seconds)
    steps = (3 + 2 + 3) / 3
    assert trial.single == pytest.approx(0.08 * 3 / 8 * 10 * steps)
    assert tried == [[0], [0], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (Choice("sequential", ""), SequentialRunner),
        (Choice("stacked", ""), StackedRunner),
        (Choice("processes", "", {"workers": 1, "threads": 1}), ProcessRunner),
    ],
)
def test_the_choice_is_built(monkeypatch: pytest.MonkeyPatch, choice: Choice, kind: type) -> None:
    asked: dict[str, Any] = {}

    def chosen(job: Job, cohort: int, cores: int | None) -> Choice:
        asked.update(cohort=cohort, cores=cores)
        return choice

    monkeypatch.setattr(rules, "choose", chosen)
    runner = RUNNERS["auto"](work(), cores=3)
    runner.close()
    assert isinstance(runner, kind)
    assert asked == {"cohort": 3, "cores": 3}


def test_a_users_module_that_counts_its_passes_does_not_notice_the_trial() -> None:
    class Counting(nn.Module):
        passes = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.passes += 1
            return inputs

    module = toy.mlp(torch.float32)
    module.body = nn.Sequential(module.body, Counting())
    job = toy.job(fedavg(), module)
    assert Trial(job, 3).single > 0
    assert module.body[1].passes == 0
