"""Partitions of training examples over clients; `split` is the entry point.

The plot is in `fedra.data.partition.split_plot`, because it imports matplotlib.
"""

from fedra.data.partition import (
    dirichlet,
    dirichlet_clients,
    identity,
    iid,
    natural,
    one_class,
    quantity,
    shards,
)
from fedra.data.partition.aligned import aligned_test
from fedra.data.partition.contract import PARTITIONS, Indices, split
from fedra.data.partition.report import client_names, label_counts, summary, table

__all__ = [
    "PARTITIONS",
    "Indices",
    "aligned_test",
    "client_names",
    "dirichlet",
    "dirichlet_clients",
    "identity",
    "iid",
    "label_counts",
    "natural",
    "one_class",
    "quantity",
    "shards",
    "split",
    "summary",
    "table",
]
