"""Reports on personal models: printed results, one line per client, and a plot."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedra.core.job import Job
from fedra.evaluation.personal_models import PersonalModels
from fedra.storage.claims import claim
from fedra.writing import save_figure, write_atomically

BINS = 20
"""Number of histogram bins from 0 to 100 % accuracy."""

MAX_NAMED = 5
"""Maximum number of clients that a warning names; the record has all of them."""


def lines(job: Job, outcome: PersonalModels) -> list[dict[str, Any]]:
    """Return one line per client: number of examples, accuracy of its personal model in every variant, and of the
    global model. A personal model that is not finite has no accuracy, and its client is marked as diverged.
    """
    diverged = set(outcome.diverged)
    return [
        {
            "client": client,
            "examples": job.clients.size(client),
            "accuracy": outcome.own.get(client),
            **{f"accuracy_{way}": accuracies.get(client) for way, accuracies in outcome.ways.items()},
            "global_accuracy": shared,
            **{metric.key: outcome.own_metrics.get(client, {}).get(metric.key) for metric in outcome.metrics},
            **{f"global_{key}": value for key, value in outcome.shared_metrics.get(client, {}).items()},
            **({"diverged": True} if client in diverged else {}),
        }
        for client, shared in sorted(outcome.shared.items())
    ]


def warning(diverged: Sequence[int], tested: int) -> str | None:
    """Return the warning about clients whose personal models diverged, or None without any."""
    if not diverged:
        return None
    more = f" and {len(diverged) - MAX_NAMED} more" if len(diverged) > MAX_NAMED else ""
    return (
        f"warning: the personal models of {len(diverged)} of {tested} clients diverged and are excluded from the means "
        f"(client {', '.join(map(str, diverged[:MAX_NAMED]))}{more}): lower the learning rate or the regularization"
    )


def counted(diverged: Sequence[int]) -> dict[str, int]:
    """Return the number of diverged clients for the summary, if there are any."""
    return {"diverged_clients": len(diverged)} if diverged else {}


def write(folder: Path, outcome: PersonalModels, records: Iterable[dict[str, Any]]) -> None:
    """Write personalized.jsonl with these lines, and personalized.svg."""
    claim(folder, "personalized.jsonl", "personalized.svg")
    write_atomically(folder / "personalized.jsonl", "".join(json.dumps(line) + "\n" for line in records).encode())
    draw_personalized(outcome, folder / "personalized.svg")


def result(outcome: PersonalModels) -> str:
    """Return the printed result: one line per variant of the personal models, and one for the global model."""
    metrics = outcome.summary()

    def describe(name: str) -> str:
        found = [metrics[f"{name}{end}"] for end in ("", "_std", "_worst_decile")]
        mean, spread, worst = (None if value is None else f"{100 * value:.2f}" for value in found)
        if mean is None:
            return "none is finite"
        return f"mean accuracy {mean} %, standard deviation {spread}, worst decile {worst}"

    name = "personalized_accuracy"
    variants = {f" {_variant_name(way)}": describe(f"{name}_{way}") for way in outcome.ways} or {"": describe(name)}
    own = [f"personal models{way}: {text}" for way, text in variants.items()]
    shared = 100 * (metrics["global_on_clients_accuracy"] or 0.0)
    more = [
        f"{one.name} of personal models: {one.text(metrics[f'personalized_{one.key}'])}, of the global model on the "
        f"same test sets: {one.text(metrics[f'global_on_clients_{one.key}'])}"
        for one in outcome.metrics
    ]
    return "\n".join([*own, f"global model on the same test sets: mean accuracy {shared:.2f} %", *more])


def _variant_name(way: str) -> str:
    """Convert the key of a variant to text."""
    return re.sub(r"after_(\d+)", r"after \1 epochs", way).replace("_", " ")


def draw_personalized(outcome: PersonalModels, path: Path) -> None:
    """Plot histograms of client accuracies, for personal models and for the global model."""
    from matplotlib.ticker import MaxNLocator  # slow to import and only needed here

    from fedra.pictures import COLORS, DASHED, make_panels, place_legend

    figure, (axes,) = make_panels(width=6.4, height=3.6)
    for name, found, color in (
        ("global model", outcome.shared, COLORS[1]),
        ("personal models", outcome.own, COLORS[0]),
    ):
        values = [100 * value for value in found.values()]
        if not values:
            continue
        mean = sum(values) / len(values)
        label = f"{name}, mean {mean:.1f} %"
        axes.hist(values, bins=BINS, range=(0, 100), color=color, alpha=0.55, label=label)
        axes.axvline(mean, color=color, linewidth=1.4, linestyle=DASHED)
    axes.set(xlabel="accuracy on the client's own class distribution (%)", ylabel="clients", xlim=(0, 100))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    place_legend(axes)
    save_figure(figure, path)
