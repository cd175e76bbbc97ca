"""An index of a large gallery for many searches: faiss's graph of near neighbors (the extra `index`)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedra.errors import ConfigError
from fedra.faces.metrics import Matches
from fedra.faces.metrics.embedding_checks import directions

LINKS = 32
"""Neighbors each template is linked with: more make the index larger and its answers better."""
LOOKED_AT = 128
"""Templates a search looks at, or eight times as many as it is asked for."""


class GraphIndex:
    """Templates as a navigable graph (Malkov and Yashunin, TPAMI 2020): a search looks at a few hundred of a million.

    It may miss a neighbor that an exact search finds; what it finds has its true cosine.
    """

    def __init__(self, templates: Tensor) -> None:
        try:
            import faiss
        except ImportError:
            raise ConfigError(
                "the search engine 'faiss' needs faiss: pip install 'fedra[index]', or search with 'exact'"
            ) from None
        units = directions("the gallery's templates", templates).float().cpu().contiguous().numpy()
        self._index = faiss.IndexHNSWFlat(units.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
        self._index.add(units)

    def search(self, features: Tensor, top: int) -> Matches:
        """The most alike templates of each query (N, d), the best first."""
        asked = directions("the queries", features).float().cpu().contiguous().numpy()
        if asked.shape[1] != self._index.d:
            raise ConfigError(
                f"the queries are of length {asked.shape[1]} and the templates of length {self._index.d}: take both "
                "from one model"
            )
        self._index.hnsw.efSearch = max(LOOKED_AT, 8 * top)
        scores, rows = self._index.search(asked, top)
        return Matches(torch.from_numpy(scores), torch.from_numpy(rows))
