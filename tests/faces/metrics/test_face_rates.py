"""ROC, AUROC, EER and TAR at FAR against double loops and scikit-learn, with and without ties."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.metrics import ClientScores, Scores, calibrate, enrolled_scores
from fedra.faces.metrics.error_rates import allowed_errors

TIED = st.lists(st.integers(-4, 4), min_size=1, max_size=30)
RATES = st.sampled_from([0.0, 1e-6, 0.01, 0.1, 0.29, 0.3, 1 / 3, 0.5, 0.7, 0.99])


def tensor(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32) / 4


def normal_scores(genuine: int = 400, impostors: int = 3000, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(genuine, generator=draw) + 1.5, torch.randn(impostors, generator=draw)


def labeled(genuine: Tensor, impostor: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return np.r_[np.ones(len(genuine)), np.zeros(len(impostor))], torch.cat([genuine, impostor]).numpy()


@given(TIED, TIED)
def test_auroc_counts_ties_as_one_half(genuine: list[int], impostor: list[int]) -> None:
    wins = sum(1.0 if g > i else 0.5 if g == i else 0.0 for g in genuine for i in impostor)
    found = Scores.of(tensor(genuine), tensor(impostor)).auroc()
    assert found == pytest.approx(wins / len(genuine) / len(impostor), abs=1e-15)
    assert found == pytest.approx(roc_auc_score(*labeled(tensor(genuine), tensor(impostor))), abs=1e-12)


@given(TIED, TIED)
def test_the_curve_holds_every_operating_point(genuine: list[int], impostor: list[int]) -> None:
    """Every point of scikit-learn's curve lies on ours, and the area below is the AUROC."""
    scores = Scores.of(tensor(genuine), tensor(impostor))
    curve = scores.curve()
    fpr, tpr, _ = roc_curve(*labeled(tensor(genuine), tensor(impostor)), drop_intermediate=False)
    ours = list(zip(curve.far, curve.tar, strict=True))
    for point in zip(fpr, tpr, strict=True):
        assert any(_between(point, a, b) for a, b in pairwise(ours))
    assert ours[0] == (0, 0)
    assert ours[-1] == (1, 1)
    assert np.trapezoid(curve.tar, curve.far) == pytest.approx(scores.auroc(), abs=1e-12)


def _between(point: tuple[float, float], a: tuple[float, float], b: tuple[float, float]) -> bool:
    inside = all(low - 1e-12 <= x <= high + 1e-12 for low, x, high in zip(a, point, b, strict=True))
    area = (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0])
    return inside and abs(area) < 1e-12


@given(TIED, TIED)
def test_thresholds_of_the_curve_reach_their_rates(genuine: list[int], impostor: list[int]) -> None:
    scores = Scores.of(tensor(genuine), tensor(impostor))
    for far, tar, threshold in zip(*scores.curve(), strict=True):
        assert (tensor(genuine).double() >= threshold).double().mean() == tar
        assert (tensor(impostor).double() >= threshold).double().mean() == far
        assert scores.rates(threshold) == (tar, far)


def test_the_curve_is_scikit_learns_without_ties() -> None:
    genuine, impostor = normal_scores()
    curve = Scores.of(genuine, impostor).curve()
    fpr, tpr, _ = roc_curve(*labeled(genuine, impostor))
    corners = set(zip(curve.far.tolist(), curve.tar.tolist(), strict=True))
    assert set(zip(fpr.tolist(), tpr.tolist(), strict=True)) <= corners


@given(TIED, TIED, RATES)
@settings(max_examples=200)
def test_tar_at_far_is_the_best_allowed(genuine: list[int], impostor: list[int], far: float) -> None:
    scores = Scores.of(tensor(genuine), tensor(impostor))
    point = scores.tar_at(far)
    candidates = [-9.0, *{x / 4 for x in genuine + impostor}, 9.0]
    allowed = [t for t in candidates if _rate(impostor, t) <= Fraction(str(far))]
    best = max(_rate(genuine, t) for t in allowed)
    assert point.rate == float(best)
    assert float(_rate(impostor, point.threshold.value)) == point.threshold.attained <= far
    assert _rate(genuine, point.threshold.value) == best
    assert point.threshold.smallest == impostor.count(max(impostor)) / len(impostor)
    assert (point.threshold.warning is None) == (far >= point.threshold.smallest)


def _rate(scores: list[int], threshold: float) -> Fraction:
    return Fraction(sum(s / 4 >= threshold for s in scores), len(scores))


def test_a_calibrated_threshold_holds_in_the_scores_own_type() -> None:
    """A float32 score compared with the threshold in torch decides as the counting did."""
    _, impostor = normal_scores(impostors=1000)
    for far in (0.0, 0.001, 0.029, 0.29):
        threshold = calibrate(impostor, far)
        assert int((impostor >= threshold.value).sum()) == round(far * 1000)
        assert threshold.attained == far
    half = calibrate(impostor.double(), 0.01).value
    assert int((impostor.double() >= half).sum()) == 10


def test_a_wide_threshold_on_narrow_scores() -> None:
    scores = Scores.of(torch.tensor([0.3]), torch.tensor([0.1]))
    narrow = float(torch.tensor(0.3))
    assert scores.rates(narrow) == (1.0, 0.0)
    assert scores.rates(math.nextafter(narrow, 1)) == (0.0, 0.0)
    assert scores.rates(math.nextafter(narrow, 0)) == (1.0, 0.0)


def test_rates_are_decimals() -> None:
    assert [allowed_errors(rate, 100) for rate in (0.29, 0.57, 0.58, 0.1)] == [29, 57, 58, 10]
    assert allowed_errors(1e-6, 15_639_000) == 15


def test_a_rate_that_too_few_impostors_can_show() -> None:
    genuine, impostor = normal_scores(impostors=50)
    point = Scores.of(genuine, impostor).tar_at(1e-3)
    assert point.threshold.attained == 0
    assert point.threshold.smallest == 0.02
    assert point.rate == float((genuine > impostor.max()).double().mean())
    assert "0.001 cannot be measured with these impostors" in str(point.threshold.warning)
    assert "0.02" in str(point.threshold.warning)
    assert Scores.of(genuine, impostor).tar_at(0.02).threshold.warning is None


def test_the_closest_rule_is_the_one_of_the_ijb_tables() -> None:
    genuine, impostor = normal_scores()
    scores = Scores.of(genuine, impostor)
    fpr, tpr, _ = roc_curve(*labeled(genuine, impostor))
    fpr, tpr = fpr[::-1], tpr[::-1]
    for far in (1e-6, 1e-4, 1e-3, 3.3e-3, 1e-2, 0.1, 0.5):
        _, index = min((abs(rate - far), place) for place, rate in enumerate(fpr))
        point = scores.tar_at(far, "closest")
        assert (point.rate, point.threshold.attained) == (tpr[index], fpr[index])
        assert scores.rates(point.threshold.value) == (tpr[index], fpr[index])


@given(TIED, TIED)
def test_eer_lies_where_the_curve_meets_the_diagonal(genuine: list[int], impostor: list[int]) -> None:
    scores = Scores.of(tensor(genuine), tensor(impostor))
    curve, eer = scores.curve(), scores.eer()
    assert any(_between((eer, 1 - eer), a, b) for a, b in pairwise(zip(curve.far, curve.tar, strict=True)))


def test_eer_of_known_sets() -> None:
    assert Scores.of(tensor([3, 4]), tensor([1, 2])).eer() == 0
    assert Scores.of(tensor([1, 2]), tensor([3, 4])).eer() == 1
    assert Scores.of(tensor([1]), tensor([1])).eer() == 0.5
    assert Scores.of(tensor([2, 4]), tensor([1, 3])).eer() == 0.5


def test_figures_are_plain_json() -> None:
    genuine, impostor = normal_scores()
    figures = json.loads(json.dumps(Scores.of(genuine, impostor).metrics((1e-2,)), allow_nan=False))
    assert figures["genuine"] == 400
    assert figures["tar"]["0.01"]["rate"] == Scores.of(genuine, impostor).tar_at(1e-2).rate
    assert figures["tar"]["0.01"]["warning"] is None


def test_millions_of_scores_are_counted_exactly() -> None:
    """Three million impostors: rates against a plain count, and a curve no larger than the genuine scores."""
    genuine, impostor = normal_scores(1000, 3_000_000)
    scores = Scores.of(genuine, impostor)
    assert scores.impostor.dtype == np.float32
    point = scores.tar_at(1e-5)
    limit = impostor.sort(descending=True).values[30]
    assert point.rate == float((genuine > limit).double().mean())
    assert len(scores.curve().far) <= 2 * 1000 + 2


def test_pairs_of_both_kinds_are_told_apart() -> None:
    scores = Scores.of_pairs(torch.tensor([0.1, 0.9, 0.3]), torch.tensor([False, True, False]))
    assert scores.genuine.tolist() == [pytest.approx(0.9)]
    assert len(scores.impostor) == 2


@pytest.mark.parametrize(
    ("genuine", "impostor", "sentence"),
    [
        ([], [0.5], "genuine scores must not be empty"),
        ([0.5], [], "impostor scores must not be empty"),
        ([0.5, math.nan], [0.1], "genuine scores must be finite, got NaN"),
        ([0.5], [math.inf], "impostor scores must be finite, got NaN or infinity"),
        ([0.5], [-math.inf, 0], "impostor scores must be finite, got NaN or infinity"),
    ],
)
def test_broken_scores_are_refused(genuine: list[float], impostor: list[float], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        Scores.of(torch.tensor(genuine), torch.tensor(impostor))


def test_other_mistakes() -> None:
    with pytest.raises(DataError, match="labels must have length 3, one for each of the scores, got 2"):
        Scores.of_pairs(torch.rand(3), torch.tensor([True, False]))
    with pytest.raises(DataError, match=r"must be booleans \(N,\), got torch.int64"):
        Scores.of_pairs(torch.rand(2), torch.tensor([1, 0]))
    with pytest.raises(DataError, match=r"must be floating-point \(N,\), got torch.int64"):
        Scores.of(torch.tensor([1]), torch.tensor([0]))
    with pytest.raises(ConfigError, match=r"below 1, got 1.0"):
        calibrate(torch.rand(5), 1.0)
    with pytest.raises(ConfigError, match="below 1, got nan"):
        calibrate(torch.rand(5), math.nan)


def test_clients_mean_and_pooled_differ() -> None:
    """Each client separates perfectly, but no threshold serves both."""
    apart = ClientScores.of({0: (tensor([4, 3]), tensor([2, 1])), 7: (tensor([0, -1]), tensor([-2, -3]))})
    figures = apart.metrics((0.25,))
    assert figures["auroc_macro"] == 1
    assert figures["auroc_std"] == 0
    assert figures["clients"] == {"0": {"auroc": 1.0, "eer": 0.0}, "7": {"auroc": 1.0, "eer": 0.0}}
    pooled = [(g, i) for g in (4, 3, 0, -1) for i in (2, 1, -2, -3)]
    assert apart.pooled().auroc() == sum(g > i for g, i in pooled) / len(pooled)
    assert figures["pooled"] == apart.pooled().metrics((0.25,))


def test_a_client_without_impostors_is_named() -> None:
    with pytest.raises(DataError, match="client 7: impostor scores must not be empty"):
        ClientScores.of({7: (torch.rand(2), torch.rand(0))})
    with pytest.raises(DataError, match="at least one client, got none"):
        ClientScores.of({})


def test_probes_against_the_enrolled_template() -> None:
    draw = torch.Generator().manual_seed(1)
    enrolled, own, others = (torch.randn(n, 6, generator=draw) for n in (3, 4, 5))
    genuine, impostor = enrolled_scores(enrolled, own, others)
    template = sum(row / row.norm() for row in enrolled)
    for scores, rows in ((genuine, own), (impostor, others)):
        expected = [float(row @ template / row.norm() / template.norm()) for row in rows]
        assert scores.tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(DataError, match="must have the same length, got 6 and 5"):
        enrolled_scores(enrolled, own[:, :5], others)
