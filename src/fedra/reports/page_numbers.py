"""How a page names and writes metrics, sizes and times."""

from __future__ import annotations

from collections.abc import Iterable

from fedra.console import format_duration
from fedra.evaluation.classifier_metrics import METRICS
from fedra.reports.comparison import megabytes
from fedra.reports.record_groups import RunGroup, Spread
from fedra.reports.run_record import RunRecord
from fedra.reports.sweep_metric import SweepMetric

KNOWN = {metric.key: metric for metric in METRICS.values()}
TITLES = {"train_loss": "training loss", "loss": "test loss", "auroc": "AUROC", "eer": "EER", "f1": "F1", "mcc": "MCC"}
ORDER = ("accuracy", "auroc", "eer", "loss", "train_loss")
"""Metrics that come first, in this order."""
OTHERS = frozenset(
    [
        "round",
        "clients",
        "dropped",
        "restarted",
        "bytes_up",
        "bytes_down",
        "seconds",
        "only_class",
        "zero_embeddings",
        "collapsed",
        "epsilon",
        "clip",
        "noise_share",
        "malicious_weight",
        "trigger_rate",
        "control_rate",
        "accuracy_before",
        "local_accuracy_mean",
        "local_accuracy_std",
        "preservation",
        "forgetting",
        "global_local_distance",
        "local_local_distance",
    ]
)
"""Keys of a round that are not metrics of the model; those of class vectors have prefixes."""
PREFIXES = ("vector_length_", "server_step_", "server_turn_", "nearest_cosine_")


def metric_keys(runs: Iterable[RunRecord]) -> list[str]:
    """Return the metrics that the rounds of any run have, the usual ones first."""
    found: dict[str, None] = {}
    for run in runs:
        for line in (*run.metrics[:1], *run.metrics[-1:]):
            found |= dict.fromkeys(key for key, value in line.items() if isinstance(value, float) or key in ORDER)
    keys = [key for key in found if key not in OTHERS and not key.startswith(PREFIXES)]
    return sorted(keys, key=lambda key: (ORDER.index(key) if key in ORDER else len(ORDER), key))


def title_of(key: str, split: str = "") -> str:
    """Return the name of a metric."""
    name = TITLES.get(key, key.replace("_", " "))
    if key == "loss" and split:
        return f"{split} loss"
    return f"{split} {name}" if key == "accuracy" and split else name


def is_percent(key: str) -> bool:
    """Return whether a metric is shown in percent."""
    return key == "eer" or (key in KNOWN and KNOWN[key].percent)


def is_higher_better(key: str) -> bool:
    """Return whether a larger value is better."""
    return SweepMetric(f"final_{key}").higher


def unit_of(key: str) -> str:
    """Return the unit for an axis or a heading."""
    return " (%)" if is_percent(key) else ""


def factor_of(key: str) -> float:
    """Return the factor from the record to the page."""
    return 100.0 if is_percent(key) else 1.0


def write_value(key: str, value: float | None) -> str:
    """Write a metric without its unit."""
    if value is None:
        return "–"
    return f"{100 * value:.2f}" if is_percent(key) else f"{value:.4f}"


def write_spread(key: str, spread: Spread | None) -> str:
    """Write mean ± sample standard deviation, without the latter for one value."""
    if spread is None:
        return "–"
    mean = write_value(key, spread.mean)
    return mean if spread.deviation is None else f"{mean} ± {write_value(key, spread.deviation)}"


def best_group(groups: Iterable[RunGroup], key: str) -> tuple[RunGroup, Spread] | None:
    """Return the group with the best mean, if any has finished runs."""
    found = [(group, spread) for group in groups if (spread := group.spread(key)) is not None]
    choose = max if is_higher_better(key) else min
    return choose(found, key=lambda item: item[1].mean) if found else None


def rank_groups(groups: Iterable[RunGroup], key: str) -> list[RunGroup]:
    """Return the groups from the best mean to the worst; those without a finished run come last."""
    sign = -1.0 if is_higher_better(key) else 1.0

    def order(group: RunGroup) -> tuple[bool, float]:
        spread = group.spread(key)
        return (spread is None, 0.0 if spread is None else sign * spread.mean)

    return sorted(groups, key=order)


def write_size(count: float) -> str:
    """Write bytes in MB, or in GB from a thousand of them on."""
    return megabytes(int(count)) if count < 1e9 else f"{count / 1e9:,.2f} GB"


def write_time(seconds: float) -> str:
    """Write a time with one more digit below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 10 else format_duration(seconds)
