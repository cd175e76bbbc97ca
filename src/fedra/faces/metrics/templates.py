"""Combine several embeddings of a person: flip fusion, and the template pooling of IJB-B and IJB-C."""

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
    """Combine the embeddings of images and of their mirror images.

    Args:
        original: Embeddings (N, d) of the images.
        mirrored: Embeddings (N, d) of the mirrored images.
        how: "sum" adds them, "concat" concatenates them.

    Returns:
        Embeddings (N, d), or (N, 2 d) with "concat", not normalized.

    Example:
        >>> fuse_flip(torch.ones(2, 4), torch.ones(2, 4), "concat").shape
        torch.Size([2, 8])
    """
    check_table("the embeddings", original)
    if original.shape != mirrored.shape:
        shapes = f"{tuple(original.shape)} and {tuple(mirrored.shape)}"
        raise DataError(f"images and mirror images must have embeddings of equal shape, got {shapes}")
    return original + mirrored if how == "sum" else torch.cat([original, mirrored], dim=1)


@dataclass(frozen=True)
class Templates:
    """Normalized embeddings of templates.

    Args:
        embeddings: Normalized embeddings (T, d).
        ids: Template id of each row (T,), ascending.

    Example:
        >>> pool_templates(torch.eye(3), torch.tensor([7, 7, 9])).ids
        tensor([7, 9])
    """

    embeddings: Tensor
    ids: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of templates.

        Args:
            ids: Template ids (n,).

        Returns:
            Their rows (n,).

        Example:
            >>> templates.rows(torch.tensor([9]))
            tensor([1])
        """
        check_integers("template ids", ids, len(ids), "templates")
        ids = ids.to(self.ids.device, self.ids.dtype)
        rows = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        unknown = (self.ids[rows] != ids).nonzero()
        if len(unknown):
            raise DataError(f"template {int(ids[unknown[0, 0]])} has no images: check the list of templates")
        return rows

    def of(self, ids: Tensor) -> Tensor:
        """Return the embeddings of templates.

        Args:
            ids: Template ids (n,).

        Returns:
            Their embeddings (n, d).

        Example:
            >>> templates.of(torch.tensor([9])).shape
            torch.Size([1, 3])
        """
        return self.embeddings[self.rows(ids)]


def pool_templates(
    features: Tensor,
    template_ids: Tensor,
    media_ids: Tensor | None = None,
    *,
    detector_scores: Tensor | None = None,
    keep_norm: bool = True,
) -> Templates:
    """Compute one normalized embedding per template: the mean over frames of a medium, the sum over media.

    A video of many frames thus has the same weight as a single photo.

    Args:
        features: Embeddings (N, d) of images.
        template_ids: Template of each image (N,).
        media_ids: Medium (photo or video) of each image (N,); default: every image is its own medium.
        detector_scores: Weight of each image (N,), such as the detector's confidence; default: all equal.
        keep_norm: Weight each embedding by its norm, a measure of image quality; otherwise normalize it first.

    Returns:
        The templates, ordered by id.

    Example:
        >>> pool_templates(features, template_ids, media_ids).embeddings.shape
        torch.Size([12115, 512])
    """
    check_table("the features", features)
    check_integers("template ids", template_ids, len(features), "features")
    units = directions("the features", features)
    weighted = features.to(working_dtype(features)) if keep_norm else units
    if detector_scores is not None:
        weighted = weighted * _check_scores(detector_scores, len(features)).to(weighted)[:, None]
    if media_ids is not None:
        check_integers("media ids", media_ids, len(features), "features")
        weighted, template_ids = _media_means(weighted, template_ids, media_ids)
    ids, index = torch.unique(template_ids, return_inverse=True)
    sums = weighted.new_zeros(len(ids), weighted.shape[1]).index_add_(0, index.to(weighted.device), weighted)
    return Templates(directions("the pooled templates", sums), ids.to(weighted.device))


def _check_scores(scores: Tensor, count: int) -> Tensor:
    if tuple(scores.shape) != (count,):
        raise DataError(f"detector_scores must have shape ({count},), one per feature, got {tuple(scores.shape)}")
    if not bool(torch.isfinite(scores).all()) or bool((scores < 0).any()):
        raise DataError("detector_scores must be finite and at least 0")
    return scores


def _media_means(rows: Tensor, template_ids: Tensor, media_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each medium within its template, and the template of each mean."""
    keys = torch.stack([template_ids.long(), media_ids.long()], dim=1)
    media, index, counts = torch.unique(keys, dim=0, return_inverse=True, return_counts=True)
    sums = rows.new_zeros(len(media), rows.shape[1]).index_add_(0, index.to(rows.device), rows)
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
    """Score pairs of templates (IJB 1:1); IJB's tables report TAR with the rule "closest".

    Args:
        templates: The templates.
        first: Template id of the first of each pair (N,).
        second: Template id of the second (N,).
        same: Whether the pair shows the same person (N,), boolean.
        block_bytes: Memory for working blocks.
        done: Called with the number of pairs after each block.

    Returns:
        Genuine and impostor scores.

    Example:
        >>> verify_templates(templates, first, second, same).tar_at(1e-4, "closest").rate
        0.96
    """
    check_flags("labels", same, len(first), "pairs of templates")
    rows = templates.rows(first), templates.rows(second)
    scores = pair_cosines(templates.embeddings, *rows, block_bytes=block_bytes, done=done)
    return Scores.of_pairs(scores, same.to(scores.device))
