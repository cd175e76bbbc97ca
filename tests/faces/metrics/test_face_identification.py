"""Ranks, open-set rates and MegaFace against double loops, whatever the block size."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedra.errors import ConfigError, DataError
from fedra.faces.metrics import (
    Subjects,
    clean_probes,
    closed_set,
    insightface_1n,
    mark_distractors,
    megaface,
    open_set,
    open_set_over_galleries,
    read_feature,
    read_features,
    write_feature,
)

LENGTH = 6
BLOCKS = st.integers(1, 4000)
SEEDS = st.integers(0, 10_000)


def people(ids: list[int], noise: float = 1.0, seed: int = 0) -> Subjects:
    """Noisy images of persons, each with a direction of its own."""
    centers = torch.randn(50, LENGTH, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    blur = torch.randn(len(ids), LENGTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Subjects(centers[ids] + noise * blur, torch.tensor(ids))


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


def table(probes: Subjects, gallery: Subjects) -> list[list[float]]:
    return [[cosine(p, g) for g in gallery.embeddings] for p in probes.embeddings]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=15), st.integers(1, 12), SEEDS, BLOCKS)
@settings(max_examples=50, deadline=None)
def test_cmc_by_double_loop(ids: list[int], up_to: int, seed: int, block_bytes: int) -> None:
    probes, gallery = people(ids, seed=seed), people(list(range(9)), seed=seed + 1)
    ranks = []
    for subject, scores in zip(ids, table(probes, gallery), strict=True):
        ranks.append(1 + sum(score >= scores[subject] for other, score in enumerate(scores) if other != subject))
    found = closed_set(probes, gallery, up_to=up_to, block_bytes=block_bytes)
    expected = [sum(rank <= k for rank in ranks) / len(ranks) for k in range(1, min(up_to, 9) + 1)]
    assert list(found.cmc) == pytest.approx(expected)
    assert list(found.cmc) == sorted(found.cmc)


def test_a_tie_is_a_miss() -> None:
    """A network that maps every face to one point recognizes nobody."""
    collapsed = Subjects(torch.ones(4, 3), torch.arange(4))
    found = closed_set(collapsed, collapsed, up_to=4)
    assert found.cmc == (0.0, 0.0, 0.0, 1.0)
    assert closed_set(collapsed, collapsed, up_to=2).cmc == (0.0, 0.0)
    strangers = Subjects(torch.ones(5, 3), torch.arange(5))
    assert open_set(strangers, collapsed, (0.5,)).points[0].rate == 0


def test_rank_figures() -> None:
    gallery = people(list(range(9)), noise=0.01)
    found = closed_set(people([0, 3, 5], noise=0.01, seed=1), gallery, up_to=5)
    assert found.rank(1) == found.rank(7) == 1.0
    assert found.metrics((1, 5)) == {"probes": 3, "rank_1": 1.0, "rank_5": 1.0, "cmc": [1.0] * 5}


@given(
    st.lists(st.integers(0, 14), min_size=1, max_size=40).filter(lambda ids: min(ids) < 8 <= max(ids)), SEEDS, BLOCKS
)
@settings(max_examples=60, deadline=None)
def test_open_set_by_double_loop(ids: list[int], seed: int, block_bytes: int) -> None:
    probes, gallery = people(ids, noise=0.6, seed=seed), people(list(range(8)), noise=0.6, seed=seed + 1)
    scores = table(probes, gallery)
    strangers = [max(line) for subject, line in zip(ids, scores, strict=True) if subject >= 8]
    mated = [(subject, line) for subject, line in zip(ids, scores, strict=True) if subject < 8]
    fpirs = (0.0, 0.01, 0.25, 0.5)
    found = open_set(probes, gallery, fpirs, block_bytes=block_bytes)
    assert (found.mated, found.non_mated) == (len(mated), len(strangers))
    for fpir, point in zip(fpirs, found.points, strict=True):
        best = 0.0
        for threshold in [*strangers, *(max(line) for _, line in mated), 2.0]:
            if sum(score >= threshold for score in strangers) / len(strangers) <= fpir:
                right = sum(line[who] >= threshold and line[who] == max(line) for who, line in mated)
                best = max(best, right / len(mated))
        assert point.rate == pytest.approx(best)
        assert point.threshold.attained <= fpir
        assert point.threshold.smallest == pytest.approx(1 / len(strangers))
        assert (point.threshold.warning is None) == (fpir >= 1 / len(strangers))


def test_two_galleries_are_strangers_to_each_other() -> None:
    probes = people([0, 1, 2, 3, 0, 3], noise=0.3, seed=5)
    galleries = [people([0, 1], seed=6), people([2, 3], seed=7)]
    told: list[int] = []
    means, parts = open_set_over_galleries(probes, galleries, (0.4,), done=told.append)
    assert [part.mated for part in parts] == [3, 3]
    assert means[0] == sum(part.points[0].rate for part in parts) / 2
    assert parts[1].points == open_set(probes, galleries[1], (0.4,)).points
    assert sum(told) == 6 * 4
    assert parts[0].metrics()["non_mated"] == 3


@given(st.lists(st.integers(0, 8), min_size=1, max_size=20), SEEDS, BLOCKS)
@settings(max_examples=50, deadline=None)
def test_insightface_lines_by_double_loop(ids: list[int], seed: int, block_bytes: int) -> None:
    probes, gallery = people(ids, seed=seed), people(list(range(9)), seed=seed + 1)
    scores = table(probes, gallery)
    others = sorted((s for who, line in zip(ids, scores, strict=True) for j, s in enumerate(line) if j != who))[::-1]
    fars = (1e-6, 0.01, 0.1, 0.5)
    for far, point in zip(fars, insightface_1n(probes, gallery, fars, block_bytes=block_bytes), strict=True):
        limit = others[math.ceil(far * len(ids)) - 1]
        expected = sum(line[who] > limit + 1e-12 for who, line in zip(ids, scores, strict=True)) / len(ids)
        assert point.rate == pytest.approx(expected)
        assert point.threshold.value == pytest.approx(limit)


@given(st.lists(st.integers(0, 3), min_size=5, max_size=14), st.integers(1, 25), SEEDS, BLOCKS)
@settings(max_examples=50, deadline=None)
def test_megaface_by_double_loop(ids: list[int], distractors: int, seed: int, block_bytes: int) -> None:
    probes, strangers = people(ids, 0.7, seed), people([20 + i % 20 for i in range(distractors)], 2.0, seed + 1)
    removed = torch.arange(distractors) % 4 > 1
    kept = strangers.embeddings[~removed]
    impostor = [cosine(p, d) for p in probes.embeddings for d in kept]
    genuine, found = [], 0
    for i, p in enumerate(probes.embeddings):
        nearest = max(cosine(p, d) for d in kept)
        for j, g in enumerate(probes.embeddings):
            if i != j and ids[i] == ids[j]:
                genuine.append(cosine(p, g))
                found += genuine[-1] > nearest
    fars = (0.0, 0.05, 0.3, 0.9)
    result = megaface(probes, strangers.embeddings, fars, removed=removed, block_bytes=block_bytes)
    assert result.pairs == len(genuine)
    assert result.rank_1 == pytest.approx(found / len(genuine))
    for far, point in zip(fars, result.points, strict=True):
        allowed = math.floor(round(far * len(ids) * distractors, 9))
        limit = sorted(impostor)[::-1][allowed] if allowed < len(impostor) else -2
        assert point.rate == pytest.approx(sum(g > limit + 1e-12 for g in genuine) / len(genuine))


def test_a_distractor_as_near_as_the_own_person_wins() -> None:
    one, other = torch.eye(2, 4)
    probes = Subjects(torch.stack([one, one, other, other]), torch.tensor([0, 0, 1, 1]))
    found = megaface(probes, one[None], (0.5,))
    assert found.rank_1 == 0.5
    assert found.points[0].rate == 1.0
    assert megaface(probes, one[None], (0.25,)).points[0].rate == 0.0


def test_megaface_without_rates_and_its_figures() -> None:
    probes, strangers = people([0, 0, 1, 1], 0.01), people([30, 31], 0.01)
    assert megaface(probes, strangers.embeddings, ()).metrics() == {"pairs": 4, "rank_1": 1.0, "tar": {}}
    figures = megaface(probes, strangers.embeddings).metrics()
    assert "cannot be measured" in str(figures["tar"])


def test_cleaned_probes_stand_at_the_center_of_the_clean_ones() -> None:
    probes = people([0, 0, 0, 1, 1])
    noisy = torch.tensor([False, False, True, False, False])
    cleaned = clean_probes(probes, noisy, torch.Generator().manual_seed(0))
    units = probes.embeddings / probes.embeddings.norm(dim=1, keepdim=True)
    assert torch.allclose(cleaned.embeddings[~noisy], units[~noisy])
    center = units[0] + units[1]
    assert cosine(cleaned.embeddings[2], center) > 1 - 1e-5
    assert not torch.allclose(cleaned.embeddings[2], center / center.norm(), atol=1e-6)
    assert cleaned.embeddings[2].norm() == pytest.approx(1)
    again = clean_probes(probes, noisy, torch.Generator().manual_seed(0))
    assert torch.equal(cleaned.embeddings, again.embeddings)
    with pytest.raises(DataError, match="must have a clean probe image, but 1 has none"):
        clean_probes(probes, probes.ids == 1, torch.Generator())


def test_marked_distractors_are_far_from_every_probe() -> None:
    strangers = people([1, 2, 3]).embeddings
    marked = mark_distractors(strangers, torch.tensor([False, True, False]))
    assert marked.shape == (3, LENGTH + 1)
    assert marked[:, -1].tolist() == [0, 100, 0]
    assert torch.equal(marked[:, :-1], strangers)


def test_feature_files_are_opencv_matrices(tmp_path: Path) -> None:
    feature = torch.tensor([1.0, -2.5, 3e-5])
    path = tmp_path / "deep" / "a.bin"
    write_feature(path, feature)
    expected = np.array([3, 1, 4, 5], "<i4").tobytes() + np.array([1.0, -2.5, 3e-5], "<f4").tobytes()
    assert path.read_bytes() == expected
    assert torch.equal(read_feature(path), feature)
    write_feature(tmp_path / "b.bin", feature * 2)
    assert torch.equal(read_features([path, tmp_path / "b.bin"]), torch.stack([feature, feature * 2]))
    assert [file.name for file in tmp_path.iterdir()] != []
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 15,
        b"\0" * 16,
        np.array([3, 1, 4, 5], "<i4").tobytes() + b"\0" * 11,
        np.array([3, 1, 4, 5], "<i4").tobytes() + b"\0" * 13,
        np.array([3, 1, 4, 6], "<i4").tobytes() + b"\0" * 12,
        np.array([-1, 1, 4, 5], "<i4").tobytes() + b"\0" * 12,
    ],
)
def test_damaged_feature_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broken.bin"
    path.write_bytes(data)
    with pytest.raises(DataError, match="not a complete MegaFace feature file"):
        read_feature(path)


def test_mistakes_with_feature_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_feature(tmp_path / "missing.bin")
    with pytest.raises(DataError, match="must be finite, got NaN"):
        write_feature(tmp_path / "a.bin", torch.tensor([torch.nan]))
    with pytest.raises(DataError, match=r"must be a vector \(d,\)"):
        write_feature(tmp_path / "a.bin", torch.ones(2, 2))
    (tmp_path / "nan.bin").write_bytes(np.array([1, 1, 4, 5], "<i4").tobytes() + np.float32(np.nan).tobytes())
    with pytest.raises(DataError, match=r"nan.bin' must be finite"):
        read_feature(tmp_path / "nan.bin")
    write_feature(tmp_path / "two.bin", torch.ones(2))
    write_feature(tmp_path / "three.bin", torch.ones(3))
    with pytest.raises(DataError, match=r"three.bin' must have length 2 like .*two.bin', got 3"):
        read_features([tmp_path / "two.bin", tmp_path / "three.bin"])
    with pytest.raises(DataError, match="at least one feature file, got none"):
        read_features([])


def test_other_mistakes() -> None:
    gallery = people([0, 1, 2])
    with pytest.raises(DataError, match="subject 1 has 2"):
        closed_set(gallery, people([0, 1, 1, 2]))
    with pytest.raises(DataError, match="must be in the gallery, but 7 is not"):
        closed_set(people([0, 7]), gallery)
    with pytest.raises(ConfigError, match=r"ranks must be at least 1, got \(0,\)"):
        closed_set(gallery, gallery, up_to=0)
    with pytest.raises(DataError, match="there are no non-mated ones"):
        open_set(gallery, gallery)
    with pytest.raises(DataError, match="there are no mated ones"):
        open_set(people([5]), gallery)
    with pytest.raises(DataError, match="at least one gallery, got none"):
        open_set_over_galleries(gallery, [])
    with pytest.raises(DataError, match="must be in the gallery: remove"):
        insightface_1n(people([7]), gallery)
    with pytest.raises(DataError, match="at least 2 subjects, got 1"):
        insightface_1n(people([0]), people([0]))
    with pytest.raises(DataError, match="subject ids must have length 3, one for each of the embeddings, got 2"):
        Subjects(gallery.embeddings, gallery.ids[:2])
    with pytest.raises(DataError, match="at least one person must have two probe images"):
        megaface(gallery, people([30]).embeddings)
    with pytest.raises(DataError, match="at least one distractor"):
        megaface(people([0, 0]), people([30]).embeddings, removed=torch.tensor([True]))
    with pytest.raises(DataError, match="removal flags must have length 2, one for each of the distractors, got 1"):
        megaface(people([0, 0]), people([30, 31]).embeddings, removed=torch.tensor([True]))
