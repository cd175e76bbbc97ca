"""After the last round: what clients recognise by the frozen, the global and their own models, as table and picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.console import steps
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.core.view import Server
from fedra.evaluation.personal_models import own_models
from fedra.experiment.evaluators.client_evaluator import ClientsJudge
from fedra.faces.metrics.client_recognition import Found, Recognition
from fedra.reports.client_models import counted
from fedra.runners.base import Runner
from fedra.storage.claims import claim
from fedra.writing import write_atomically


def recognise(
    judge: ClientsJudge,
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    console: Console | None = None,
) -> dict[str, Recognition]:
    """By the model the run began with, by the final global one and, where clients have any, by their own.

    A client whose own model diverged is not among the last.
    """
    found = {
        "frozen": judge.shared(job.model, job.model.start),
        "global": judge.shared(job.model, server.weights),
    }
    if job.algorithm.personalise is None:
        return found
    with steps(console, "every client's own model", len(judge.devices)) as done:
        tested = [device.client for device in judge.devices]
        own = own_models(job, make_runner, server, memory, rounds, tested)
        found["personal"] = Recognition.of(_searched(judge, job, own, done))
    return found


def _searched(
    judge: ClientsJudge, job: Job, own: Iterator[tuple[int, Weights | None]], done: Callable[[int], None]
) -> Iterator[tuple[int, Found]]:
    devices = {device.client: device for device in judge.devices}
    for client, weights in own:
        found = None if weights is None else judge.own(job.model, weights, devices[client])
        if found is not None:
            yield client, found
        done(1)


def diverged(judge: ClientsJudge, found: Mapping[str, Recognition]) -> list[int]:
    """The tested clients whose own models are not finite."""
    if "personal" not in found:
        return []
    return [device.client for device in judge.devices if device.client not in found["personal"].found]


def _figures(judge: ClientsJudge, found: Mapping[str, Recognition], name: str) -> dict[str, float | None]:
    """The figures of one model; None each where all clients' own ones diverged."""
    if not found[name].found:
        return dict.fromkeys(judge.figures(found["global"]))
    return dict(judge.figures(found[name]))


def result(judge: ClientsJudge, found: Mapping[str, Recognition]) -> str:
    """The outcome in one line."""
    aurocs = {name: _figures(judge, found, name)["auroc"] for name in found}
    told = ", ".join(f"{name} {'none' if value is None else f'{value:.4f}'}" for name, value in aurocs.items())
    return f"AUROC of {len(judge.devices)} clients among strangers, by model: {told}"


def summary_of(judge: ClientsJudge, found: Mapping[str, Recognition]) -> dict[str, Any]:
    """Figures for the summary, as personal_auroc and so on, and how many clients were tested on how much."""
    figures = {f"{name}_{key}": value for name in found for key, value in _figures(judge, found, name).items()}
    scores = found["global"].scores().pooled()
    counts = {"tested_clients": len(judge.devices), "genuine": len(scores.genuine), "impostors": len(scores.impostor)}
    return {**figures, **counts, "fpir_wanted": judge.fpir, **counted(diverged(judge, found))}


def write_recognition(folder: Path, judge: ClientsJudge, found: Mapping[str, Recognition]) -> None:
    """recognition.jsonl, a line for every tested client, and recognition.svg, how its AUROCs are spread."""
    from fedra.faces.metrics.plots import draw_spread  # matplotlib is slow to import and only needed here

    aurocs = {name: one.aurocs() if one.found else {} for name, one in found.items()}
    lost = set(diverged(judge, found))
    lines = [
        {
            "client": device.client,
            "enrolled": len(device.enrolled),
            "probes": len(device.probes),
            "impostors": len(device.impostors),
            **{f"{name}_auroc": own.get(device.client) for name, own in aurocs.items()},
            **({"diverged": True} if device.client in lost else {}),
        }
        for device in judge.devices
    ]
    claim(folder, "recognition.jsonl", "recognition.svg")
    write_atomically(folder / "recognition.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    draw_spread({name: list(own.values()) for name, own in aurocs.items() if own}, folder / "recognition.svg")
