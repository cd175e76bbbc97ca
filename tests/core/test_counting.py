"""Counting right answers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import toy
from fedra.algorithms import fedavg
from fedra.core.batches import Examples
from fedra.core.evaluate import EVALUATION_BATCH, Counts, count, evaluation_batches
from fedra.runners import RUNNERS


def test_portions_cover_every_example_once() -> None:
    cuts = evaluation_batches(2 * EVALUATION_BATCH + 1)
    assert [row for start, end in cuts for row in range(start, end)] == list(range(2 * EVALUATION_BATCH + 1))


def test_counts_by_hand() -> None:
    work = toy.job(fedavg())
    weights = work.model.weights()
    test = toy.clients(sizes=(600,))[0]
    out = work.model.output(weights, test.inputs).logits
    right = out.argmax(dim=1) == test.targets
    found = RUNNERS["sequential"](replace(work, test=test)).evaluate(weights)
    assert found.accuracy == pytest.approx(float(right.double().mean()))
    assert found.mean_loss == pytest.approx(float(torch.nn.functional.cross_entropy(out, test.targets)))
    for label in range(toy.CLASSES):
        of_label = right[test.targets == label].double()
        if len(of_label):
            assert float(found.class_accuracy[label]) == pytest.approx(float(of_label.mean()))


def test_a_class_without_examples_has_no_accuracy() -> None:
    work = toy.job(fedavg())
    test = Examples(torch.zeros(3, 5, dtype=torch.float64), torch.tensor([0, 0, 1]))
    found = count(work.model, work.model.weights(), test, toy.CLASSES, [(0, 3)])[0]
    assert math.isnan(float(found.class_accuracy[3]))
    assert found.examples.tolist() == [2, 1, 0, 0]


def test_nothing_counted_is_zero() -> None:
    nothing = Counts(torch.zeros(2), torch.zeros(2), 0.0)
    assert nothing.accuracy == 0.0
    assert nothing.mean_loss == 0.0


def test_evaluation_leaves_running_statistics_alone() -> None:
    work = toy.job(fedavg(), toy.conv())
    weights = work.model.weights()
    before = {name: value.clone() for name, value in weights.buffers.items()}
    RUNNERS["sequential"](work).evaluate(weights)
    assert toy.same_bits(weights.buffers, before)
