"""Partitions of training examples over clients; `split` is the entry point.

The plot is in `fedra.data.partition.split_plot`, because it imports matplotlib.
"""

from fedra.data.partition.aligned import aligned_test
from fedra.data.partition.contract import PARTITIONS, Indices, split
from fedra.data.partition.report import client_names, label_counts, summary, table

__all__ = [
    "PARTITIONS",
    "Indices",
    "aligned_test",
    "client_names",
    "label_counts",
    "split",
    "summary",
    "table",
]
