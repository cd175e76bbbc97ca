"""Embeddings of a person's many images made one: flip fusion and the template pooling of IJB-B and IJB-C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedra.errors import DataError
from fedra.faces.metrics.embedding_checks import (
    check_flags,
    check_integers,
    check_table,
    directions,
)
from fedra.faces.metrics.error_rates import Scores
from fedra.faces.metrics.search import BLOCK_BYTES, Done, ignore_progress, pair_cosines
from fedra.losses.angle import working_dtype


def fuse_flip(original: Tensor, mirrored: Tensor, how: Literal["sum", "concat"] = "sum") -> Tensor:
    """The embeddings of images and of their mirror images as one, not normalized: f(x) + f(flip x), or both."""
    check_table("the embeddings", original)
    if original.shape != mirrored.shape:
        shapes = f"{tuple(original.shape)} and {tuple(mirrored.shape)}"
        raise DataError(f"images and mirror images have embeddings of shapes {shapes}: give one of each")
    return original + mirrored if how == "sum" else torch.cat([original, mirrored], dim=1)


@dataclass(frozen=True)
class Templates:
    """Unit embeddings (T, d), and the number of the template in each row, rising."""

    embeddings: Tensor
    ids: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of some templates."""
        check_integers("template numbers", ids, len(ids), "templates")
        ids = ids.to(self.ids.device, self.ids.dtype)
        rows = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        unknown = (self.ids[rows] != ids).nonzero()
        if len(unknown):
            raise DataError(f"template {int(ids[unknown[0, 0]])} has no images: check the list of templates")
        return rows

    def of(self, ids: Tensor) -> Tensor:
        """The embeddings of some templates."""
        return self.embeddings[self.rows(ids)]


def pool_templates(
    features: Tensor,
    template_ids: Tensor,
    media_ids: Tensor | None = None,
    *,
    detector_scores: Tensor | None = None,
    keep_norm: bool = True,
) -> Templates:
    """One unit embedding for each template: the mean over frames of a medium, the sum over media, normalized.

    A video of many frames thus weighs no more than a photograph; without `media_ids` every image is a medium of
    its own. `keep_norm` lets a feature's length weigh it as a measure of quality (off: unit features), and
    `detector_scores` weigh images by the detector's confidence.
    """
    check_table("the features", features)
    check_integers("template numbers", template_ids, len(features), "features")
    units = directions("the features", features)
    weighed = features.to(working_dtype(features)) if keep_norm else units
    if detector_scores is not None:
        weighed = weighed * _checked_scores(detector_scores, len(features)).to(weighed)[:, None]
    if media_ids is not None:
        check_integers("media numbers", media_ids, len(features), "features")
        weighed, template_ids = _media_means(weighed, template_ids, media_ids)
    ids, place = torch.unique(template_ids, return_inverse=True)
    sums = weighed.new_zeros(len(ids), weighed.shape[1]).index_add_(0, place.to(weighed.device), weighed)
    return Templates(directions("the pooled templates", sums), ids.to(weighed.device))


def _checked_scores(scores: Tensor, count: int) -> Tensor:
    if tuple(scores.shape) != (count,):
        raise DataError(f"there are detector scores of shape {tuple(scores.shape)} for {count} features: give one each")
    if not bool(torch.isfinite(scores).all()) or bool((scores < 0).any()):
        raise DataError("the detector scores hold a negative or unknown number: give numbers from 0 up")
    return scores


def _media_means(rows: Tensor, template_ids: Tensor, media_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each medium within its template, and the template of each mean."""
    keys = torch.stack([template_ids.long(), media_ids.long()], dim=1)
    media, place, counts = torch.unique(keys, dim=0, return_inverse=True, return_counts=True)
    sums = rows.new_zeros(len(media), rows.shape[1]).index_add_(0, place.to(rows.device), rows)
    return sums / counts.to(rows)[:, None], media[:, 0]


def verify_templates(
    templates: Templates,
    first: Tensor,
    second: Tensor,
    same: Tensor,
    *,
    block_bytes: int = BLOCK_BYTES,
    done: Done = ignore_progress,
) -> Scores:
    """IJB 1:1: the cosines of pairs of templates, named by their numbers. Its tables read TAR by rule "closest"."""
    check_flags("labels", same, len(first), "pairs of templates")
    rows = templates.rows(first), templates.rows(second)
    scores = pair_cosines(templates.embeddings, *rows, block_bytes=block_bytes, done=done)
    return Scores.of_pairs(scores, same.to(scores.device))
