"""The clients' own models as people read them: the result in words, a line per client, and a picture."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedra.core.job import Job
from fedra.evaluation.personalised import Personalised
from fedra.writing import save_figure, write_atomically

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


def write(folder: Path, outcome: Personalised, told: Iterable[dict[str, Any]]) -> None:
    """personalised.jsonl with these lines, and personalised.svg."""
    write_atomically(folder / "personalised.jsonl", "".join(json.dumps(line) + "\n" for line in told).encode())
    draw_personalised(outcome, folder / "personalised.svg")


def result(outcome: Personalised) -> str:
    """The result: a line for every way that was tried, and one for the global model."""
    figures = outcome.figures()

    def told(name: str) -> str:
        mean, spread, worst = (100 * figures[f"{name}{end}"] for end in ("", "_std", "_worst_decile"))
        return f"{mean:.2f} % on average, deviation {spread:.2f}, worst decile {worst:.2f}"

    name = "personalised_accuracy"
    tried = {f" {_words(way)}": told(f"{name}_{way}") for way in outcome.ways} or {"": told(name)}
    own = [f"clients' own models{way}: {text}" for way, text in tried.items()]
    return "\n".join([*own, f"the global model on the same tests: {100 * figures['global_on_clients_accuracy']:.2f} %"])


def _words(way: str) -> str:
    """A way's name as people say it."""
    return re.sub(r"after_(\d+)", r"after \1 epochs", way).replace("_", " ")


def draw_personalised(outcome: Personalised, path: Path) -> None:
    """How many clients have which accuracy, with their own models and with the global one."""
    from matplotlib.figure import Figure  # slow to import and only needed here
    from matplotlib.ticker import MaxNLocator

    from fedra.experiment.report import COLOURS

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, found, colour in (
        ("the global model", outcome.shared, COLOURS[5]),
        ("the client's own", outcome.own, COLOURS[0]),
    ):
        values = [100 * value for value in found.values()]
        mean = sum(values) / len(values)
        label = f"{name}, {mean:.1f} % on average"
        axes.hist(values, bins=BINS, range=(0, 100), color=colour, alpha=0.55, label=label)
        axes.axvline(mean, color=colour, linewidth=1.4, linestyle="--")
    axes.set(xlabel="accuracy on the client's own mixture of classes (%)", ylabel="clients", xlim=(0, 100))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncol=2)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
