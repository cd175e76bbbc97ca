"""Approximate search in a large gallery with faiss's neighbor graph (the extra `index`)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedra.errors import ConfigError
from fedra.faces.metrics import Matches
from fedra.faces.metrics.embedding_checks import directions

LINKS = 32
"""Neighbors linked to each template: more make the index larger and more accurate."""
SEARCH_DEPTH = 128
"""Candidates that a search keeps (faiss's efSearch), or eight times `top` if that is more."""


class GraphIndex:
    """Templates in a navigable small-world graph (Malkov and Yashunin, TPAMI 2020).

    A search may miss a neighbor that an exact search finds; the scores it returns are exact cosines.
    """

    def __init__(self, templates: Tensor) -> None:
        try:
            import faiss
        except ImportError:
            raise ConfigError(
                "the search engine 'faiss' needs the package faiss: pip install 'fedra[index]', or use 'exact'"
            ) from None
        units = directions("the gallery's templates", templates).float().cpu().contiguous().numpy()
        self._index = faiss.IndexHNSWFlat(units.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
        self._index.add(units)

    def search(self, features: Tensor, top: int) -> Matches:
        """Return the most similar templates of each query (N, d), best first."""
        queries = directions("the queries", features).float().cpu().contiguous().numpy()
        if queries.shape[1] != self._index.d:
            raise ConfigError(
                f"the queries must have the length of the templates ({self._index.d}), got {queries.shape[1]}: compute "
                "both with the same model"
            )
        self._index.hnsw.efSearch = max(SEARCH_DEPTH, 8 * top)
        scores, rows = self._index.search(queries, top)
        return Matches(torch.from_numpy(scores), torch.from_numpy(rows))
