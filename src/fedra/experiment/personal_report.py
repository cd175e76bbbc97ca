"""The clients' own models as people read them: a line, a table with a line per client, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedra.core.job import Job
from fedra.evaluation.personalised import Personalised
from fedra.writing import save_figure

BINS = 20
"""Bars over the accuracies from 0 to 100 %."""


def lines(job: Job, outcome: Personalised) -> list[dict[str, Any]]:
    """A line per client: its examples, its own model's accuracy (all ways that were tried), and the global model's."""
    return [
        {
            "client": client,
            "examples": job.clients.size(client),
            "accuracy": own,
            **{f"accuracy_{way}": of[client] for way, of in outcome.ways.items()},
            "global_accuracy": outcome.shared[client],
        }
        for client, own in sorted(outcome.own.items())
    ]


def sentence(outcome: Personalised) -> str:
    """The result in one line."""
    figures = outcome.figures()

    def told(name: str) -> str:
        mean, spread, worst = (100 * figures[f"{name}{end}"] for end in ("", "_std", "_worst_decile"))
        return f"{mean:.2f} % (deviation {spread:.2f}, worst decile {worst:.2f})"

    name = "personalised_accuracy"
    tried = [f"{way.replace('_', ' ')} {told(f'{name}_{way}')}" for way in outcome.ways]
    own = ", ".join(tried) or told(name)
    return f"clients' own models: {own}; the global model: {100 * figures['global_on_clients_accuracy']:.2f} %"


def draw_personalised(outcome: Personalised, path: Path) -> None:
    """How many clients have which accuracy, with their own models and with the global one."""
    from matplotlib.figure import Figure  # slow to import and only needed here

    from fedra.experiment.report import COLOURS

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, found, colour in (
        ("the global model", outcome.shared, COLOURS[-2]),
        ("the client's own", outcome.own, COLOURS[0]),
    ):
        values = [100 * value for value in found.values()]
        mean = sum(values) / len(values)
        label = f"{name}, {mean:.1f} % on average"
        axes.hist(values, bins=BINS, range=(0, 100), color=colour, alpha=0.55, label=label)
        axes.axvline(mean, color=colour, linewidth=1.4, linestyle="--")
    axes.set(xlabel="accuracy on the client's own mixture of classes (%)", ylabel="clients", xlim=(0, 100))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
