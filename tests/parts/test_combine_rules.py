"""Combine rules on uploads made by hand, and the one rule for running statistics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

import fedra
import tiny
from fedra.algorithms import fedavg, scaffold
from fedra.algorithms.fednova import NormalizedMean
from fedra.core import tree
from fedra.core.capabilities import CollectsUploads
from fedra.core.model import Weights
from fedra.core.part import Combine
from fedra.core.round import init_server, server_update
from fedra.core.uploads import Uploads
from fedra.core.view import Population, Upload
from fedra.parts.combine import Median, PlainMean, TrimmedMean, WeightedMean

RULES = [WeightedMean(), PlainMean(), NormalizedMean(), Median(), TrimmedMean(0.25)]


def upload(value: float, examples: int = 1, steps: float = 1.0, batches: int = 0) -> Upload:
    buffers = {"body.mean": torch.tensor([value * 10.0]), "body.batches": torch.tensor(batches)}
    return Upload(
        delta={"w": torch.tensor([float(value)])},
        buffers=buffers,
        examples=examples,
        steps=int(steps),
        effective_steps=steps,
        extras={},
        metrics={},
    )


def combined(rule: Combine, *uploads: Upload) -> Weights:
    start = Weights({"w": torch.zeros(1)}, {"body.mean": torch.zeros(1), "body.batches": torch.tensor(0)})
    algorithm = fedavg().plus(rule)
    return server_update(algorithm, init_server(algorithm, start), uploads, Population(clients=9, examples=99)).weights


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (WeightedMean(), (1 * 1 + 3 * 2 + 4 * 9) / 8),
        (PlainMean(), 4.0),
        (NormalizedMean(), (1 * 5 + 3 * 2 + 4 * 1) / 8 * (1 * 1 / 5 + 3 * 2 / 2 + 4 * 9 / 1) / 8),
        (Median(), 2.0),
        (TrimmedMean(0.34), 2.0),
        (TrimmedMean(0.1), 4.0),
    ],
)
def test_by_hand(rule: Combine, wanted: float) -> None:
    found = combined(rule, upload(1, 1, 5.0), upload(2, 3, 2.0), upload(9, 4, 1.0))
    assert float(found.params["w"]) == pytest.approx(wanted, rel=1e-6)


def test_an_even_number_has_two_middles() -> None:
    assert float(combined(Median(), *map(upload, (1, 2, 4, 100))).params["w"]) == 3.0


@pytest.mark.parametrize("rule", [WeightedMean(), PlainMean(), NormalizedMean()])
def test_statistics_are_averaged_by_size_and_counters_take_the_largest(rule: Combine) -> None:
    found = combined(rule, upload(1, 1, batches=4), upload(2, 3, batches=7), upload(3, 4, batches=5)).buffers
    assert float(found["body.mean"]) == pytest.approx(10 * (1 * 1 + 3 * 2 + 4 * 3) / 8)
    assert int(found["body.batches"]) == 7
    assert found["body.batches"].dtype == torch.int64


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.34)])
def test_robust_rules_hold_against_one_liar(rule: Combine) -> None:
    found = combined(rule, upload(1), upload(2, batches=3), upload(1e30, 10**6))
    assert float(found.params["w"]) == 2.0
    assert float(found.buffers["body.mean"]) == 20.0
    assert int(found.buffers["body.batches"]) == 3


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(values=st.lists(st.tuples(st.floats(-9, 9, width=32), st.integers(1, 50)), min_size=1, max_size=6))
def test_a_mean_lies_between_and_uploads_are_only_read(rule: Combine, values: list[tuple[float, int]]) -> None:
    uploads = [upload(value, examples, 2.0) for value, examples in values]
    before: list[Tensor] = [one.delta["w"].clone() for one in uploads]
    found = float(combined(rule, *uploads).params["w"])
    assert min(values)[0] - 1e-4 <= found <= max(values)[0] + 1e-4
    assert all(torch.equal(one.delta["w"], old) for one, old in zip(uploads, before, strict=True))


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.25)], ids=lambda rule: rule.name)
@given(order=st.permutations(range(5)))
def test_the_order_of_uploads_does_not_matter(rule: Combine, order: list[int]) -> None:
    values = [0.3, -1.0, 7.5, 2.25, 0.5]
    some = combined(rule, *(upload(values[place]) for place in order))
    assert torch.equal(some.params["w"], combined(rule, *map(upload, values)).params["w"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_stack_counts_as_its_uploads_one_by_one(rule: Combine) -> None:
    several = [upload(1, 1, 5.0, batches=2), upload(2, 3, 2.0, batches=7), upload(9, 4, 1.0), upload(-3, 2, 4.0)]
    whole = Uploads(
        delta={"w": torch.stack([one.delta["w"] for one in several])},
        buffers={name: torch.stack([one.buffers[name] for one in several]) for name in several[0].buffers},
        examples=[one.examples for one in several],
        steps=[one.steps for one in several],
        effective_steps=[one.effective_steps for one in several],
        extras={},
        metrics={},
        broken_step=[None] * 4,
    )
    wanted = combined(rule, *several)
    found = rule.finish(rule.add_stack(rule.add_stack(rule.start(), whole.select([0, 1])), whole.select([2, 3])))
    assert float(found.params["w"]) == pytest.approx(float(wanted.params["w"]), rel=1e-6)
    assert float(found.buffers["body.mean"]) == pytest.approx(float(wanted.buffers["body.mean"]), rel=1e-6)
    assert int(found.buffers["body.batches"]) == int(wanted.buffers["body.batches"])


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.3)], ids=lambda rule: rule.name)
def test_what_parts_collect_is_robust_too(rule: Combine) -> None:
    """SCAFFOLD's control variate is the drift of the center, however far two of seven clients lie."""
    algorithm = scaffold().plus(rule)
    part = next(iter(algorithm.with_capability(CollectsUploads)))
    server = init_server(algorithm, Weights({"w": torch.zeros(1)}, {}))

    def control(*values: float) -> float:
        sent = [replace(upload(v), buffers={}, extras={part: {"rate": torch.tensor([2.0])}}) for v in values]
        after = server_update(algorithm, server, sent, Population(clients=7, examples=7))
        (found,) = (value for value in tree.flatten(after.memory).values())
        return float(found)

    honest = control(1, 2, 3, 4, 5, 6, 7)
    assert honest == pytest.approx(control(1, 2, 3, 4, 5, 6e6, 7e6), rel=1e-6)
    assert honest != 0
    assert honest == pytest.approx(control(4, 4, 4, 4, 4, 4, 4), rel=1e-6)


def test_a_rule_that_trims_nobody_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert TrimmedMean(0.25).caution(4) is None
    assert TrimmedMean(0.0).caution(4) is None
    assert Median().caution(1) is None
    assert "set trim to at least 0.1" in str(TrimmedMean(0.099).caution(10))
    fedra.run(tiny.table(rounds=1, algorithm={"name": "fedavg", "plus": ["trimmed-mean"]}), console=Console(width=200))
    assert "trimmed-mean leaves out no client: trim = 0.1 of 4 clients" in capsys.readouterr().out
