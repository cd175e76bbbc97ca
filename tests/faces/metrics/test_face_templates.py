"""Templates pooled by hand, and IJB's 1:1 protocol on them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics import Templates, fuse_flip, pool_templates, verify_templates


def features(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(rows: list[Tensor], media: list[int]) -> Tensor:
    """The mean of each medium, their sum, at unit length."""
    total = torch.zeros(5, dtype=torch.float64)
    for medium in set(media):
        frames = [row for row, other in zip(rows, media, strict=True) if other == medium]
        total += torch.stack(frames).mean(dim=0)
    return total / total.norm()


@given(
    st.lists(st.tuples(st.integers(-3, 5), st.integers(0, 2)), min_size=1, max_size=25), st.booleans(), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_pooling_by_hand(images: list[tuple[int, int]], keep_norm: bool, weigh: bool) -> None:
    rows = features(len(images))
    confidence = torch.linspace(0.5, 1, len(images), dtype=torch.float64)
    weighed = rows if keep_norm else rows / rows.norm(dim=1, keepdim=True)
    weighed = weighed * confidence[:, None] if weigh else weighed
    ids, media = (torch.tensor(column) for column in zip(*images, strict=True))
    found = pool_templates(rows, ids, media, detector_scores=confidence if weigh else None, keep_norm=keep_norm)
    assert found.ids.tolist() == sorted({template for template, _ in images})
    for template, embedding in zip(found.ids.tolist(), found.embeddings, strict=True):
        mine = [i for i, (owner, _) in enumerate(images) if owner == template]
        expected = by_hand([weighed[i] for i in mine], [images[i][1] for i in mine])
        assert torch.allclose(embedding, expected, atol=1e-9)


def test_a_long_video_weighs_as_much_as_a_photograph() -> None:
    photograph, frame = torch.eye(2, 3)
    rows = torch.stack([photograph, *[frame] * 9])
    template = torch.zeros(10, dtype=torch.int64)
    media = torch.tensor([4, *[8] * 9])
    assert torch.allclose(pool_templates(rows, template, media).embeddings[0], torch.tensor([0.5, 0.5, 0]).sqrt())
    alone = pool_templates(rows, template).embeddings[0]
    assert torch.allclose(alone, torch.tensor([1.0, 9, 0]) / 82**0.5)


def test_one_medium_in_two_templates_is_two() -> None:
    rows = features(2)
    found = pool_templates(rows, torch.tensor([7, 3]), torch.tensor([1, 1]))
    assert torch.allclose(found.of(torch.tensor([7]))[0], rows[0] / rows[0].norm())


def test_flip_fusion() -> None:
    one, other = features(3), features(3, seed=1)
    assert torch.equal(fuse_flip(one, other), one + other)
    assert torch.equal(fuse_flip(one, other, "concat"), torch.cat([one, other], dim=1))
    with pytest.raises(DataError, match=r"equal shape, got \(3, 5\) and \(2, 5\)"):
        fuse_flip(one, other[:2])


def test_pairs_of_templates_by_number() -> None:
    rows = features(6)
    templates = pool_templates(rows, torch.tensor([50, 10, 40, 20, 30, 60]))
    first, second = torch.tensor([50, 10, 60]), torch.tensor([10, 40, 60])
    told: list[int] = []
    scores = verify_templates(
        templates, first, second, torch.tensor([False, False, True]), block_bytes=200, done=told.append
    )
    cosine = torch.cosine_similarity(rows[[0, 1]], rows[[1, 2]])
    assert scores.impostor.tolist() == pytest.approx(sorted(cosine.tolist()))
    assert scores.genuine.tolist() == pytest.approx([1.0])
    assert sum(told) == 3
    assert scores.tar_at(0.5, "closest").rate == 1.0


def test_mistakes() -> None:
    rows, ids = features(3), torch.tensor([1, 2, 2])
    templates = pool_templates(rows, ids)
    with pytest.raises(DataError, match="template 9 has no images"):
        templates.rows(torch.tensor([1, 9]))
    with pytest.raises(DataError, match="template 0 has no images"):
        templates.rows(torch.tensor([0]))
    with pytest.raises(DataError, match="template ids must have length 3, one for each of the features, got 2"):
        pool_templates(rows, ids[:2])
    with pytest.raises(DataError, match="media ids must have length 3, one for each of the features, got 1"):
        pool_templates(rows, ids, ids[:1])
    with pytest.raises(DataError, match=r"detector_scores must have shape \(3,\), one per feature, got \(2,\)"):
        pool_templates(rows, ids, detector_scores=torch.rand(2))
    with pytest.raises(DataError, match="must be finite and at least 0"):
        pool_templates(rows, ids, detector_scores=torch.tensor([1.0, torch.nan, 1]))
    with pytest.raises(DataError, match="the pooled templates: row 1 is zero"):
        pool_templates(torch.tensor([[1.0, 0], [0, 1], [0, -1]]), ids)
    with pytest.raises(DataError, match="features: row 0 contains NaN"):
        pool_templates(torch.full((3, 2), torch.nan), ids)
    with pytest.raises(DataError, match="template ids must be integers"):
        pool_templates(rows, ids.double())
    with pytest.raises(DataError, match="labels must have length 1, one for each of the pairs of templates, got 2"):
        verify_templates(templates, ids[:1], ids[:1], torch.tensor([True, False]))
    assert isinstance(templates, Templates)
