"""The number that a cell reads off a run.

A metric is a key of summary.json (fractions in percent), or one of

    rounds:SHARE       first round with this accuracy; one more than all rounds if it was not reached
    last:KEY           the last value of a key of metrics.jsonl
    mean:KEY           its mean over the rounds
    clients:KEY        the mean of a key of clients.jsonl over rounds and clients
    clients-abs:KEY    the same for absolute values
    angles:KEY         a metric of `fedra plot angles` on the test images; `separation` is within minus between classes
    curvature:KEY      a metric of `fedra analyze curvature` on a thousand training images, such as lambda_1
    flops:             floating-point operations of a local step, counted, relative to FedAvg's
    on:DATA:PROTOCOL:KEY   a metric of `fedra eval` on other data, or on the run's own ("test"), in percent;
                       KEY/SUBKEY for a nested one, KEY/0/SUBKEY and KEY/-1/SUBKEY for the first and last of a list
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedra.config.schema import Config
from fedra.errors import ConfigError
from fedra.reports.comparison import rounds_to
from fedra.reports.sweep_metric import SweepMetric
from fedra.storage.evaluation_record import TEST
from fedra.storage.run_folder import RunFolder

FIRST_DRIFT = "drift/first"
"""The drift of the network's first layer."""
FORMS = ("rounds", "last", "mean", "clients", "clients-abs", "angles", "curvature", "flops", "on")


def split_metric(metric: str) -> tuple[str, str]:
    """Return the form of a metric and what follows it; the form of a key of summary.json is "summary"."""
    form, colon, rest = metric.partition(":")
    if not colon:
        return "summary", metric
    if form not in FORMS:
        raise ConfigError(f"a metric must be a key of summary.json or start with {', '.join(FORMS)}, got '{metric}'")
    return form, rest


def read_value(folder: Path, metric: str, config: Config) -> float | None:
    """Return a run's value of a metric, or None if it has none.

    Args:
        folder: The folder of a finished run.
        metric: See the module.
        config: The configuration of the run.

    Returns:
        The value; a failed run counts at chance level for a key of summary.json.
    """
    form, key = split_metric(metric)
    if form == "flops":
        from fedra.reproduce.flops import relative_flops

        return relative_flops(config)
    run = RunFolder(folder)
    if form == "summary":
        return _from_summary(run, key)
    if run.failure() is not None:
        return None
    if form == "rounds":
        lines = run.metrics()
        return float(rounds_to(lines, float(key)) or len(lines) + 1)
    if form == "on":
        return _evaluate_on(folder, key)
    if form == "angles":
        return _angle(folder, key)
    if form == "curvature":
        return _curvature(folder, key)
    source = run.clients() if form.startswith("clients") else run.metrics()
    if key == FIRST_DRIFT:  # its name depends on the network
        key = next((name for name in (source[0] if source else ()) if name.startswith("drift/")), key)
    found = [line[key] for line in source if isinstance(line.get(key), int | float) and math.isfinite(line[key])]
    if not found:
        return None
    if form == "last":
        return float(found[-1])
    return statistics.fmean(map(abs, found) if form == "clients-abs" else found)


def _from_summary(run: RunFolder, key: str) -> float | None:
    summary, chosen = run.summary(), SweepMetric(key)
    if run.failure() is not None or ("collapsed" in summary and summary.get(key) is None):
        return chosen.chance(summary)
    value = summary.get(key)
    return chosen.factor * value if isinstance(value, int | float) else None


def _angle(folder: Path, key: str) -> float | None:
    from fedra.analysis.angles import angles
    from fedra.experiment.embed_run import embed_run

    metrics = angles(embed_run(folder)).metrics()
    if key == "separation":
        within, between = metrics["within_class_cosine"], metrics["between_class_cosine"]
        return None if within is None or between is None else within - between
    value = metrics.get(key)
    return float(value) if isinstance(value, int | float) else None


@cache  # one analysis serves all columns of an entry
def _curvature_metrics(folder: Path) -> Mapping[str, Any]:
    from fedra.experiment.analyze_curvature import analyze_curvature

    return next(iter(analyze_curvature([folder], planes="none").values())).curvature.metrics()


def _curvature(folder: Path, key: str) -> float | None:
    value = _curvature_metrics(folder).get(key)
    return float(value) if isinstance(value, int | float) else None


@cache  # one evaluation serves all columns of an entry
def _evaluation(folder: Path, data: str, protocol: str) -> Mapping[str, Any]:
    from fedra.experiment.evaluating import evaluate

    return evaluate(folder, data, (protocol,), flip="none" if data == TEST else "sum").metrics.get(protocol, {})


def _evaluate_on(folder: Path, key: str) -> float | None:
    data, protocol, name = key.rsplit(":", 2)
    value: Any = _evaluation(folder, data, protocol)
    for step in name.split("/"):
        if isinstance(value, list):
            value = value[int(step)] if value else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return 100.0 * float(value) if isinstance(value, int | float) else None


def format_cell(values: Sequence[float | None], metric: str) -> str:
    """Format mean and sample standard deviation, such as 64.13 (0.46); "-" without values."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    digits = _digits(metric, known)
    mean = f"{statistics.fmean(known):.{digits}f}"
    return f"{mean} ({statistics.stdev(known):.{digits}f})" if len(known) > 1 else mean


def _digits(metric: str, values: Sequence[float]) -> int:
    form, _ = split_metric(metric)
    if form in ("summary", "on", "flops"):
        return 2
    if form == "rounds":
        return 1
    largest = max(map(abs, values))
    return 2 if largest >= 10 else 4


def format_printed(cell: tuple[float | str, float | None] | None) -> str:
    """Format the paper's number as it was printed."""
    if cell is None:
        return ""
    value, deviation = cell
    shown = value if isinstance(value, str) else f"{value:g}" if value == int(value) else f"{value:.2f}"
    return f"{shown} ({deviation:.2f})" if deviation is not None else shown
