"""Ten-fold verification against plain loops over pairs and thresholds."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.metrics import Scores, Verification, verify, verify_at_far


def pairs(count: int, noise: float = 0.9, length: int = 8, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy genuine pairs and random impostors, in turn."""
    draw = torch.Generator().manual_seed(seed)
    first, other, blur = (torch.randn(count, length, generator=draw) for _ in range(3))
    same = torch.arange(count) % 2 == 0
    return first * 3, torch.where(same[:, None], first + noise * blur, other), same


def distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    units = [(a / np.linalg.norm(a), b / np.linalg.norm(b)) for a, b in zip(first, second, strict=True)]
    return np.array([float(((a - b) ** 2).sum()) for a, b in units])


def accuracy(distance: np.ndarray, same: np.ndarray, rows: list[int], threshold: float) -> float:
    return float(((distance[rows] < threshold) == same[rows]).mean())


def naive(distance_of_fold: list[np.ndarray], same: np.ndarray, folds: list[list[int]]) -> list[tuple[float, float]]:
    """Test accuracy and threshold of each fold, by trying every threshold."""
    found = []
    for distance, test in zip(distance_of_fold, folds, strict=True):
        train = np.setdiff1d(np.arange(len(same)), test).tolist()
        best, chosen = -1.0, 0.0
        for threshold in np.arange(0, 4, 0.01):
            now = accuracy(distance, same, train, threshold)
            if now > best:
                best, chosen = now, float(threshold)
        found.append((accuracy(distance, same, test, chosen), chosen))
    return found


def contiguous(count: int, folds: int) -> list[list[int]]:
    return [part.tolist() for part in np.array_split(np.arange(count), folds)]


def test_ten_folds_by_plain_loops() -> None:
    first, second, same = pairs(605)
    distance = distances(first.double().numpy(), second.double().numpy())
    expected = naive([distance] * 10, same.numpy(), contiguous(605, 10))
    told: list[int] = []
    found = verify(first, second, same, done=told.append)
    assert told == [1] * 10
    assert list(found.accuracies) == pytest.approx([a for a, _ in expected], abs=1e-12)
    assert list(found.thresholds) == [t for _, t in expected]
    assert found.accuracy == pytest.approx(np.mean([a for a, _ in expected]))
    assert found.deviation == pytest.approx(np.std([a for a, _ in expected]))
    everywhere = [accuracy(distance, same.numpy(), list(range(605)), t) for t in np.arange(0, 4, 0.01)]
    assert found.best_threshold == np.arange(0, 4, 0.01)[int(np.argmax(everywhere))]
    assert found.best_cosine == pytest.approx(1 - found.best_threshold / 2)
    assert 0.6 < found.accuracy < 0.99


@pytest.mark.parametrize("pca", [0, 3])
def test_what_is_learned_comes_from_the_training_folds(pca: int) -> None:
    first, second, same = pairs(600)
    unit = [x.double() / x.double().norm(dim=1, keepdim=True) for x in (first + 2, second + 2)]
    one, other = (x.numpy() for x in unit)
    folds, per_fold = contiguous(600, 10), []
    for test in folds:
        train = np.setdiff1d(np.arange(600), test)
        known = np.concatenate([one[train], other[train]])
        if pca:
            fitted = PCA(pca, svd_solver="full").fit(known)
            per_fold.append(distances(fitted.transform(one), fitted.transform(other)))
        else:
            per_fold.append(distances(one - known.mean(0), other - known.mean(0)))
    expected = naive(per_fold, same.numpy(), folds)
    found = verify(first + 2, second + 2, same, pca=pca, mean_center=not pca)
    assert list(found.accuracies) == pytest.approx([a for a, _ in expected], abs=1e-12)
    assert list(found.thresholds) == [t for _, t in expected]
    assert found.accuracies != verify(first + 2, second + 2, same).accuracies


def test_separable_pairs_are_all_right_and_random_ones_half() -> None:
    first, second, same = pairs(2000, noise=0.001)
    assert verify(first, second, same).accuracies == (1.0,) * 10
    draw = torch.Generator().manual_seed(3)
    random = verify(first, torch.randn(2000, 8, generator=draw), same)
    assert 0.45 < random.accuracy < 0.55
    assert random.deviation > 0


def test_few_pairs_have_fewer_folds_with_both_kinds_in_each() -> None:
    first, second, same = pairs(50, noise=0.001)
    order = torch.argsort(same, stable=True)  # all impostors first
    found = verify(first[order], second[order], same[order])
    assert found.accuracies == (1.0,) * 5
    rates = verify_at_far(first[order], second[order], same[order], 0.0)
    assert rates.tars == (1.0,) * 5
    assert len(verify(first[:24], second[:24], same[:24]).accuracies) == 2
    assert len(verify(first, second, same, folds=3).accuracies) == 3


def test_tar_at_far_of_the_folds() -> None:
    first, second, same = pairs(900)
    distance, truth = distances(first.double().numpy(), second.double().numpy()), same.numpy()
    for far in (0.0, 0.01, 0.1):
        found = verify_at_far(first, second, same, far)
        for tar, rate, test in zip(found.tars, found.fars, contiguous(900, 10), strict=True):
            train = np.setdiff1d(np.arange(900), test)
            threshold = _interpolated(distance[train][~truth[train]], far)
            accepted = distance[test] < threshold
            assert tar == pytest.approx(accepted[truth[test]].mean())
            assert rate == pytest.approx(accepted[~truth[test]].mean())
        assert found.metrics()["tar"] == pytest.approx(np.mean(found.tars))
        assert found.metrics()["far"] <= far + 0.05


def _interpolated(impostor: np.ndarray, far: float) -> float:
    grid = np.arange(0, 4, 0.001)
    for low, high in pairwise(grid):
        below, above = float((impostor < low).mean()), float((impostor < high).mean())
        if below <= far < above:
            return float(low + (far - below) / (above - below) * (high - low))
    raise AssertionError("the grid ends below this rate")


def test_the_length_of_embeddings_does_not_matter() -> None:
    first, second, same = pairs(600)
    scaled = first * torch.linspace(0.1, 50, 600)[:, None]
    assert verify(scaled, second, same) == verify(first, second, same)


def test_figures() -> None:
    figures = Verification((0.5, 1.0), (1.0, 1.2), 1.1, 20).metrics()
    assert figures["accuracy"] == 0.75
    assert figures["accuracy_std"] == 0.25
    assert figures["best_cosine"] == pytest.approx(0.45)


def test_mistakes() -> None:
    first, second, same = pairs(600)
    with pytest.raises(DataError, match="there are no impostor pairs"):
        verify(first, second, torch.ones(600, dtype=torch.bool))
    with pytest.raises(DataError, match="there are no genuine pairs"):
        verify(first, second, torch.zeros(600, dtype=torch.bool))
    with pytest.raises(DataError, match="got 600 and 599"):
        verify(first, second[1:], same)
    with pytest.raises(DataError, match="labels must have length 600, one for each of the pairs, got 599"):
        verify(first, second, same[1:])
    with pytest.raises(DataError, match=r"must be booleans \(N,\), got torch.int64"):
        verify(first, second, same.long())
    with pytest.raises(DataError, match="got 19 pairs with 9 of the rarer kind"):
        verify(first[:19], second[:19], same[:19])
    with pytest.raises(DataError, match="got 100 pairs with 1 of the rarer kind"):
        verify(first[:100], second[:100], torch.arange(100) == 5)
    with pytest.raises(ConfigError, match="pca must be between 0"):
        verify(first, second, same, pca=9)
    with pytest.raises(ConfigError, match="folds must be at least 2, got 1"):
        verify(first, second, same, folds=1)
    with pytest.raises(DataError, match="fold 0 has no genuine pairs"):
        verify_at_far(first, second, torch.arange(600) >= 300, 0.1)
    broken = second.clone()
    broken[17] = 0
    with pytest.raises(DataError, match="the second embeddings: row 17 is zero"):
        verify(first, broken, same)
    broken[17, 3] = torch.nan
    with pytest.raises(DataError, match="the second embeddings: row 17 contains NaN"):
        verify(first, broken, same)


def test_raw_pixels_of_real_pairs_are_better_than_chance() -> None:
    """LFW's first fold by the pixels alone: a sanity check of the whole protocol on real photographs."""
    home = os.environ.get("FEDRA_TEST_DATA")
    if home is None or not (Path(home) / "lfw" / "pairs.txt").exists():
        pytest.skip("FEDRA_TEST_DATA names no folder with lfw/pairs.txt")
    from PIL import Image

    lines = [line.split("\t") for line in (Path(home) / "lfw" / "pairs.txt").read_text().splitlines()[1:601]]
    halves: list[list[np.ndarray]] = [[], []]
    for line in lines:
        people = ((line[0], line[1]), (line[0] if len(line) == 3 else line[2], line[-1]))
        for half, (person, number) in zip(halves, people, strict=True):
            path = Path(home) / "lfw" / person / f"{person}_{int(number):04d}.jpg"
            half.append(np.asarray(Image.open(path).convert("L").resize((28, 28)), dtype=np.float32).ravel())
    same = torch.tensor([len(line) == 3 for line in lines])
    one, other = (torch.from_numpy(np.stack(half)) for half in halves)
    center = torch.cat([one, other]).mean(dim=0)
    found = verify(one, other, same, mean_center=True)
    assert 0.5 < found.accuracy < 0.8
    cosines = torch.cosine_similarity(one - center, other - center)
    assert Scores.of_pairs(cosines, same).auroc() > 0.52
