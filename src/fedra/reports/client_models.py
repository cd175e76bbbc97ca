"""The clients' own models as people read them: the result in words, a line per client, and a picture."""

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
"""Bars over the accuracies from 0 to 100 %."""

NAMED = 5
"""So many clients are named on the screen; the record has all."""


def lines(job: Job, outcome: PersonalModels) -> list[dict[str, Any]]:
    """A line per client: its examples, its own model's accuracy (all ways that were tried), and the global model's.

    What is not finite has no accuracy, and its client is marked.
    """
    diverged = set(outcome.diverged)
    return [
        {
            "client": client,
            "examples": job.clients.size(client),
            "accuracy": outcome.own.get(client),
            **{f"accuracy_{way}": of.get(client) for way, of in outcome.ways.items()},
            "global_accuracy": shared,
            **{metric.key: outcome.own_metrics.get(client, {}).get(metric.key) for metric in outcome.metrics},
            **{f"global_{key}": value for key, value in outcome.shared_metrics.get(client, {}).items()},
            **({"diverged": True} if client in diverged else {}),
        }
        for client, shared in sorted(outcome.shared.items())
    ]


def warning(diverged: Sequence[int], tested: int) -> str | None:
    """What people are told of clients whose own models diverged: how many, and the first few."""
    if not diverged:
        return None
    more = f" and {len(diverged) - NAMED} more" if len(diverged) > NAMED else ""
    return (
        f"warning: the own models of {len(diverged)} of {tested} clients diverged and are left out of the means "
        f"(client {', '.join(map(str, diverged[:NAMED]))}{more}): lower their rate, or the strength of what ties them"
    )


def counted(diverged: Sequence[int]) -> dict[str, int]:
    """Their number for the summary, where there are any."""
    return {"diverged_clients": len(diverged)} if diverged else {}


def write(folder: Path, outcome: PersonalModels, told: Iterable[dict[str, Any]]) -> None:
    """personalized.jsonl with these lines, and personalized.svg."""
    claim(folder, "personalized.jsonl", "personalized.svg")
    write_atomically(folder / "personalized.jsonl", "".join(json.dumps(line) + "\n" for line in told).encode())
    draw_personalized(outcome, folder / "personalized.svg")


def result(outcome: PersonalModels) -> str:
    """The result: a line for every way that was tried, and one for the global model."""
    figures = outcome.figures()

    def told(name: str) -> str:
        found = [figures[f"{name}{end}"] for end in ("", "_std", "_worst_decile")]
        mean, spread, worst = (None if value is None else f"{100 * value:.2f}" for value in found)
        return "none is finite" if mean is None else f"{mean} % on average, deviation {spread}, worst decile {worst}"

    name = "personalized_accuracy"
    tried = {f" {_words(way)}": told(f"{name}_{way}") for way in outcome.ways} or {"": told(name)}
    own = [f"clients' own models{way}: {text}" for way, text in tried.items()]
    shared = 100 * (figures["global_on_clients_accuracy"] or 0.0)
    more = [
        f"{one.name} of clients' own models: {one.text(figures[f'personalized_{one.key}'])}, of the global model on "
        f"the same tests: {one.text(figures[f'global_on_clients_{one.key}'])}"
        for one in outcome.metrics
    ]
    return "\n".join([*own, f"the global model on the same tests: {shared:.2f} %", *more])


def _words(way: str) -> str:
    """A way's name as people say it."""
    return re.sub(r"after_(\d+)", r"after \1 epochs", way).replace("_", " ")


def draw_personalized(outcome: PersonalModels, path: Path) -> None:
    """How many clients have which accuracy, with their own models and with the global one."""
    from matplotlib.figure import Figure  # slow to import and only needed here
    from matplotlib.ticker import MaxNLocator

    from fedra.reports.comparison import COLORS

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, found, color in (
        ("the global model", outcome.shared, COLORS[5]),
        ("the client's own", outcome.own, COLORS[0]),
    ):
        values = [100 * value for value in found.values()]
        if not values:
            continue
        mean = sum(values) / len(values)
        label = f"{name}, {mean:.1f} % on average"
        axes.hist(values, bins=BINS, range=(0, 100), color=color, alpha=0.55, label=label)
        axes.axvline(mean, color=color, linewidth=1.4, linestyle="--")
    axes.set(xlabel="accuracy on the client's own mixture of classes (%)", ylabel="clients", xlim=(0, 100))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncol=2)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
