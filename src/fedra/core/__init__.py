"""The training engine: parts, algorithms, the client program and the round. Independent of data sets and runners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.core.local_training import LocalTraining

__all__ = ["LocalTraining"]

_HOMES = {"fedra.core.local_training": "LocalTraining"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
