"""After the last round: what clients recognize by the frozen, the global and their own models, as table and picture."""

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
from fedra.faces.metrics.collapse import collapse_warning
from fedra.reports.client_models import NAMED, counted
from fedra.runners.base import Runner
from fedra.storage.claims import claim
from fedra.writing import write_atomically


def recognize(
    judge: ClientsJudge,
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    console: Console | None = None,
) -> dict[str, Recognition]:
    """By the model the run began with, by the final global one and, where clients have any, by their own.

    A client whose own model diverged is not among the last, and one whose own model collapsed has no scores.
    """
    found = {
        "frozen": judge.shared(job.model, job.model.start),
        "global": judge.shared(job.model, server.weights),
    }
    if job.algorithm.personalize is None:
        return found
    with steps(console, "every client's own model", len(judge.devices)) as done:
        tested = [device.client for device in judge.devices]
        own = own_models(job, make_runner, server, memory, rounds, tested)
        found["personal"] = Recognition.of(_searched(judge, job, own, done))
    return found


def _searched(
    judge: ClientsJudge, job: Job, own: Iterator[tuple[int, Weights | None]], done: Callable[[int], None]
) -> Iterator[tuple[int, Found | str]]:
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
    own = found["personal"]
    known = own.found.keys() | own.collapsed.keys()
    return [device.client for device in judge.devices if device.client not in known]


def collapsed_clients(found: Mapping[str, Recognition]) -> dict[int, str]:
    """The tested clients whose own models give every face one direction, each with the reason."""
    return dict(found["personal"].collapsed) if "personal" in found else {}


def collapses(found: Mapping[str, Recognition]) -> dict[str, str]:
    """Which of the models that all clients share have collapsed, and why."""
    reasons = {name: one.collapse_of_all() for name, one in found.items() if name != "personal"}
    return {name: reason for name, reason in reasons.items() if reason}


def result(judge: ClientsJudge, found: Mapping[str, Recognition]) -> str:
    """The outcome in one line."""
    aurocs = {name: judge.figures(one)["auroc"] for name, one in found.items()}
    told = ", ".join(f"{name} {'none' if value is None else f'{value:.4f}'}" for name, value in aurocs.items())
    return f"AUROC of {len(judge.devices)} clients among strangers, by model: {told}"


def summary_of(judge: ClientsJudge, found: Mapping[str, Recognition]) -> dict[str, Any]:
    """Figures for the summary, as personal_auroc and so on, and how many clients were tested on how much."""
    figures = {f"{name}_{key}": value for name, one in found.items() for key, value in judge.figures(one).items()}
    reasons = {f"{name}_collapsed": reason for name, reason in collapses(found).items()}
    own = {"collapsed_clients": len(lost)} if (lost := collapsed_clients(found)) else {}
    counts = {"tested_clients": len(judge.devices), **judge.comparisons(), "fpir_wanted": judge.fpir}
    return {**figures, **reasons, **counts, **counted(diverged(judge, found)), **own}


def warnings(judge: ClientsJudge, found: Mapping[str, Recognition]) -> Iterator[str]:
    """What people are told of models that have collapsed, the final global one and clients' own."""
    if reason := collapses(found).get("global"):
        yield collapse_warning(reason)
    if lost := collapsed_clients(found):
        more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        yield (
            f"warning: the own models of {len(lost)} of {len(judge.devices)} clients give all faces one direction and "
            f"are left out of the means (client {', '.join(map(str, list(lost)[:NAMED]))}{more})"
        )


def write_recognition(folder: Path, judge: ClientsJudge, found: Mapping[str, Recognition]) -> None:
    """recognition.jsonl, a line for every tested client, and recognition.svg, how AUROCs are spread, if any are."""
    from fedra.faces.metrics.plots import draw_spread  # matplotlib is slow to import and only needed here

    aurocs = {name: one.aurocs() if one.found else {} for name, one in found.items()}
    lost, alike = set(diverged(judge, found)), collapsed_clients(found)
    lines = [
        {
            "client": device.client,
            "enrolled": len(device.enrolled),
            "probes": len(device.probes),
            "impostors": len(device.impostors),
            **{f"{name}_auroc": own.get(device.client) for name, own in aurocs.items()},
            **({"diverged": True} if device.client in lost else {}),
            **({"collapsed": alike[device.client]} if device.client in alike else {}),
        }
        for device in judge.devices
    ]
    claim(folder, "recognition.jsonl", "recognition.svg")
    write_atomically(folder / "recognition.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    if drawn := {name: list(own.values()) for name, own in aurocs.items() if own}:
        draw_spread(drawn, folder / "recognition.svg")
