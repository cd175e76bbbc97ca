"""Runs that differ only in their seed, as one group with a mean and a standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedra.config.mode import title
from fedra.errors import ConfigError
from fedra.pictures import line_style
from fedra.reports.run_search import expand_runs
from fedra.reports.seed_groups import group_settings
from fedra.storage.run_folder import RunFolder

Groups = Mapping[str, Sequence[RunFolder]]


def group_runs(paths: Sequence[Path | str]) -> dict[str, list[RunFolder]]:
    """Group runs that differ only in their seed.

    Args:
        paths: Folders of runs, or of many runs, such as that of a sweep.

    Returns:
        The runs by a label: the algorithm, with the settings that differ if several groups have it.
    """
    if not paths:
        raise ConfigError("a plot must have at least one run, got none: give the folders of runs")
    folders = [RunFolder(path) for path in expand_runs(paths)]
    configs = [folder.config() for folder in folders]
    groups = group_settings([title(config) for config in configs], [config.model_dump() for config in configs])
    return {label: [folders[position] for position in members] for label, members in groups.items()}


def read_series(runs: Sequence[RunFolder], key: str, factor: float = 1.0) -> tuple[list[int], np.ndarray]:
    """Read a key of metrics.jsonl in the rounds that all runs have.

    Args:
        runs: The runs of a group.
        key: The key.
        factor: Factor on the values.

    Returns:
        The rounds, and an array with one row per run.
    """
    found = [{line["round"]: line[key] for line in run.metrics() if _is_number(line.get(key))} for run in runs]
    return _shared(found, factor)


def read_client_series(runs: Sequence[RunFolder], key: str, factor: float = 1.0) -> tuple[list[int], np.ndarray]:
    """Read the mean over clients of a key of clients.jsonl in the rounds that all runs have.

    Args:
        runs: The runs of a group.
        key: The key.
        factor: Factor on the values.

    Returns:
        The rounds, and an array with one row per run.
    """
    found = []
    for run in runs:
        values: dict[int, list[float]] = {}
        for line in run.clients():
            if _is_number(line.get(key)):
                values.setdefault(line["round"], []).append(line[key])
        found.append({round: float(np.mean(group)) for round, group in values.items()})
    return _shared(found, factor)


def _shared(found: Sequence[Mapping[int, float]], factor: float) -> tuple[list[int], np.ndarray]:
    rounds = sorted(set.intersection(*(set(values) for values in found))) if found else []
    return rounds, factor * np.array([[values[round] for round in rounds] for values in found], dtype=float)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def require(groups: Groups, key: str, setting: str, *, clients: bool = False) -> None:
    """Raise if a run did not record a key.

    Args:
        groups: The runs.
        key: The key of metrics.jsonl, or of clients.jsonl.
        setting: The setting that records it.
        clients: Whether the key is in clients.jsonl.
    """
    for runs in groups.values():
        for run in runs:
            lines = run.clients() if clients else run.metrics()
            if not any(_is_number(line.get(key)) or isinstance(line.get(key), list) for line in lines):
                raise ConfigError(
                    f"runs must have been trained with {setting} for this plot, got '{run.path}' without: train it "
                    f"again with {setting}"
                )


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """Smooth series by an exponential moving average that starts at the first value.

    Args:
        values: An array whose last axis is time.
        weight: Weight of the past, from 0 (no smoothing) to below 1.

    Returns:
        An array of the same shape; the average is divided by the weights so far, so it does not start at zero.
    """
    if not 0 <= weight < 1:
        raise ConfigError(f"the smoothing weight must be at least 0 and below 1, got {weight}")
    total, weights, found = np.zeros(values.shape[:-1]), 0.0, []
    for index in range(values.shape[-1]):
        total = weight * total + (1 - weight) * values[..., index]
        weights = weight * weights + (1 - weight)
        found.append(total / weights)
    return np.stack(found, axis=-1) if found else values


def spread(values: np.ndarray) -> np.ndarray:
    """Return the sample standard deviation over runs, zero for one run."""
    return values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])


def plot_mean(
    axes: Axes, rounds: Sequence[float], values: np.ndarray, number: int, *, label: str | None = None, **changed: Any
) -> None:
    """Plot the mean over runs with a band of one standard deviation, as line `number` of the common style."""
    if not len(rounds):
        return
    mean, band = values.mean(axis=0), spread(values)
    style = line_style(number, len(rounds)) | changed
    axes.plot(rounds, mean, label=label, **style)
    if len(values) > 1:
        axes.fill_between(rounds, mean - band, mean + band, color=style["color"], alpha=0.15, linewidth=0)


def series_rows(name: str, rounds: Sequence[int], columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return one row per round for a .csv file: the mean over runs of every column."""
    means = {key: values.mean(axis=0).tolist() for key, values in columns.items()}
    return [
        {"run": name, "round": round} | {key: values[index] for key, values in means.items()}
        for index, round in enumerate(rounds)
    ]
