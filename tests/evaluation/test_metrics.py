"""Metrics: chosen by name or function, measured by scikit-learn, undefined where a test set cannot show them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedra.errors import ConfigError
from fedra.evaluation.classifier_metrics import METRICS, Metric
from fedra.evaluation.metrics import check_classes, choose_metrics, compute_extra_metrics, compute_metrics, needs_scores

# Ten examples of two classes, eight of them of the first; scores of the second.
TRUTH = torch.tensor([0] * 8 + [1] * 2)
SCORES = [0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.6, 0.7, 0.65, 0.45]


def probabilities(scores: list[float] = SCORES) -> np.ndarray[Any, Any]:
    second = np.array(scores)
    return np.stack([1 - second, second], axis=1)


def measured(*names: str, truth: Tensor = TRUTH, given: np.ndarray[Any, Any] | None = None) -> dict[str, Any]:
    return compute_metrics(choose_metrics(names), truth, probabilities() if given is None else given)


def test_the_figures_of_an_imbalanced_test_by_hand() -> None:
    found = measured(*METRICS)
    assert found["accuracy"] == pytest.approx(0.7)  # 6 of 8, and 1 of 2
    assert found["balanced_accuracy"] == pytest.approx((6 / 8 + 1 / 2) / 2)
    assert (found["precision"], found["recall"]) == (pytest.approx(1 / 3), pytest.approx(1 / 2))
    assert found["f1"] == pytest.approx(2 * 1 / (3 + 2))
    # Of the 16 pairs of one example of each class, 0.65 wins 7 and 0.45 wins 6.
    assert found["auroc"] == pytest.approx(13 / 16)
    said = [1 - score for score in SCORES[:8]] + SCORES[8:]
    assert found["log_loss"] == pytest.approx(-sum(map(math.log, said)) / 10)
    assert found["confusion"] == [[6, 2], [1, 1]]
    assert found["per_class"]["recall"] == [pytest.approx(0.75), pytest.approx(0.5)]
    assert found["per_class"]["examples"] == [8, 2]


def test_more_than_two_classes_are_averaged_over_those_that_are_there() -> None:
    truth = torch.tensor([0, 0, 2, 2])
    given = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.3, 0.1, 0.6]])
    found = measured("recall", "auroc", "per-class", truth=truth, given=given)
    assert found["recall"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["auroc"] == pytest.approx((3 / 4 + 1) / 2)  # class 0: 0.2 loses to 0.3; class 2: all pairs right
    assert found["per_class"]["recall"][1] is None


def test_what_one_class_cannot_show_is_none() -> None:
    alone = torch.zeros(10, dtype=torch.int64)
    found = measured("auroc", "average-precision", "recall", "accuracy", truth=alone)
    assert (found["auroc"], found["average_precision"], found["recall"]) == (None, None, None)
    assert found["accuracy"] == pytest.approx(0.7)


def test_scores_that_are_not_numbers_have_no_figures() -> None:
    given = probabilities()
    given[3] = np.nan
    assert measured("accuracy", "auroc", given=given) == {"accuracy": None, "auroc": None}


def test_own_functions_by_list_by_mapping_and_with_a_direction() -> None:
    def cost(targets: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> float:
        assert targets.shape == (10,)
        assert given.shape == (10, 2)
        return float(given[targets == 1, 0].sum())

    mixed = choose_metrics(["auroc", cost])
    assert [metric.name for metric in mixed] == ["accuracy", "auroc", "cost"]
    assert compute_extra_metrics(mixed, TRUTH, torch.from_numpy(probabilities()).log())["cost"] == pytest.approx(0.9)
    (_, named) = choose_metrics({"missed": cost})
    assert (named.name, named.higher) == ("missed", True)
    lower = Metric("missed", cost, higher=False)
    assert lower.improves(0.1, 0.2)
    assert not named.improves(0.1, 0.2)
    assert choose_metrics([lower])[1] is lower


def test_accuracy_alone_needs_no_scores() -> None:
    assert not needs_scores(choose_metrics(["accuracy"]))
    assert needs_scores(choose_metrics(["auroc"]))
    assert compute_extra_metrics(choose_metrics([]), TRUTH, None) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["auroch"], "there is no metric 'auroch'"),
        ("auroc", "metrics must be a list"),
        ([3], "a metric must be a name or a function"),
        ({"auroc": lambda t, p: 0.0}, "must not have a name that fedra uses, got 'auroc'"),
        ({"train-loss": lambda t, p: 0.0}, "must not have a name that fedra uses, got 'train-loss'"),
        (
            [Metric("mine", lambda t, p: 0.0), Metric("mine", lambda t, p: 1.0)],
            "metric names must be unique, got two metrics named 'mine'",
        ),
    ],
)
def test_mistakes_are_named(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_metrics(given)


def test_an_own_function_that_fails_or_returns_no_number_is_named() -> None:
    def broken(targets: Any, given: Any) -> float:
        raise KeyError("no such column")

    with pytest.raises(KeyError) as caught:
        compute_metrics(choose_metrics([broken]), TRUTH, probabilities())
    assert "in the metric 'broken'" in caught.value.__notes__[0]
    with pytest.raises(ConfigError, match="the metric 'many' must return one number, got ndarray"):
        compute_metrics(choose_metrics({"many": lambda t, p: p}), TRUTH, probabilities())


def test_a_confusion_matrix_of_very_many_classes_is_refused() -> None:
    check_classes(choose_metrics(["confusion"]), 1000)
    with pytest.raises(ConfigError, match="at most 1,000 classes, got 10,575"):
        check_classes(choose_metrics(["confusion"]), 10_575)
