"""Partition by the owners that the data set or a column of a CSV file names."""

from __future__ import annotations

import csv
import heapq
from pathlib import Path

import numpy as np

from fedra.data.partition.contract import PARTITIONS, Indices, check_clients
from fedra.data.partition.deal import by_class
from fedra.errors import ConfigError, DataError, nearest


@PARTITIONS.add("natural")
def natural(
    targets: Indices,
    clients: int,
    seed: int,
    groups: Indices | None,
    *,
    table: Path | None = None,
    column: str | None = None,
) -> list[Indices]:
    """Create one client per group of the data set: a writer, a hospital, a folder, or a value of a CSV column.

    `table` is a CSV file with a header and one row per training example, in the order of the data set; `column` is the
    column with the owner. Without a number of clients, or with the number of groups, client k is group k (values of a
    column are sorted). With fewer clients, whole groups are merged: starting with the largest group, each one joins the
    client with the fewest examples.
    """
    if (table is None) != (column is None):
        raise ConfigError(
            "partition.table and partition.column must be set together, got only one: set both or neither"
        )
    if table is not None and column is not None:
        groups = _from_column(table, column, len(targets))
    if groups is None:
        raise ConfigError(
            "the partition 'natural' must have a data set with groups, got one without: choose another partition, or "
            "set table and column to read the owners from a CSV file"
        )
    owners = by_class(groups)
    clients = clients or len(owners)
    check_clients("natural", clients, len(owners), "groups")
    return owners if clients == len(owners) else _merge_groups(owners, clients)


def _from_column(table: Path, column: str, examples: int) -> Indices:
    """Read the owner of each example from a column of a CSV file, as integers."""
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            header = list(lines.fieldnames or ())
            if column not in header:
                hint = nearest(column, header) if header else "it has no header"
                raise ConfigError(f"the table '{table}' has no column '{column}': {hint}")
            owners = [line[column] for line in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the table '{table}' must be a readable CSV file in UTF-8, got an error: {error}") from None
    if len(owners) != examples:
        raise DataError(f"the table '{table}' must have one row per training example ({examples}), got {len(owners)}")
    empty = [number for number, owner in enumerate(owners, start=2) if not owner]
    if empty:
        raise DataError(
            f"the table '{table}' must have a value of '{column}' in every row, got none in line {empty[0]}"
        )
    return np.unique(owners, return_inverse=True)[1].astype(np.int64)


def _merge_groups(groups: list[Indices], clients: int) -> list[Indices]:
    held: list[list[Indices]] = [[] for _ in range(clients)]
    smallest = [(0, client) for client in range(clients)]
    for group in sorted(groups, key=len, reverse=True):
        size, client = heapq.heappop(smallest)
        held[client].append(group)
        heapq.heappush(smallest, (size + len(group), client))
    return [np.concatenate(own) for own in held]
