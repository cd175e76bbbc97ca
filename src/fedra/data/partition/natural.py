"""The owners that the data set itself names, or a column of a table does."""

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
    """One client per group of the data set: a writer, a hospital, a folder, or a value in a table's column.

    `table` is a CSV file with a heading and a line per training example, in the data set's order; `column` names the
    owner in it. Without a number of clients, or with the number of groups, client k is group k (values of a column
    in sorted order). With fewer clients, whole groups are merged: from the largest group on, each joins the client
    with the fewest examples.
    """
    if (table is None) != (column is None):
        raise ConfigError("the partition 'natural' needs both table and column to read owners from a file: give both")
    if table is not None and column is not None:
        groups = _from_column(table, column, len(targets))
    if groups is None:
        raise ConfigError(
            "the partition 'natural' needs a data set that names the owner of each example, and this one has no "
            "groups: choose another partition, or name a CSV file with table and column"
        )
    owners = by_class(groups)
    clients = clients or len(owners)
    check_clients("natural", clients, len(owners), "groups")
    return owners if clients == len(owners) else _merged(owners, clients)


def _from_column(table: Path, column: str, examples: int) -> Indices:
    """The owner of each example as a number, by one column of a CSV file."""
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            headings = list(lines.fieldnames or ())
            if column not in headings:
                hint = nearest(column, headings) if headings else "it has no heading"
                raise ConfigError(f"the table '{table}' has no column '{column}': {hint}")
            owners = [line[column] for line in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the table '{table}' cannot be read ({error}): give a CSV file in UTF-8") from None
    if len(owners) != examples:
        raise DataError(
            f"the table '{table}' has {len(owners)} lines for {examples} training examples: give one line per example"
        )
    empty = [number for number, owner in enumerate(owners, start=2) if not owner]
    if empty:
        raise DataError(f"the table '{table}' has no '{column}' in line {empty[0]}: fill it in")
    return np.unique(owners, return_inverse=True)[1].astype(np.int64)


def _merged(groups: list[Indices], clients: int) -> list[Indices]:
    held: list[list[Indices]] = [[] for _ in range(clients)]
    smallest = [(0, client) for client in range(clients)]
    for group in sorted(groups, key=len, reverse=True):
        size, client = heapq.heappop(smallest)
        held[client].append(group)
        heapq.heappush(smallest, (size + len(group), client))
    return [np.concatenate(own) for own in held]
