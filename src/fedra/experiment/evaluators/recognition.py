"""The final test of the protocol "clients": recognition with the initial, the global and the personal models."""

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
from fedra.evaluation.personal_models import train_personal_models
from fedra.experiment.evaluators.client_evaluator import ClientEvaluator
from fedra.faces.metrics.client_recognition import Found, Recognition
from fedra.faces.metrics.collapse import collapse_warning
from fedra.reports.client_models import MAX_NAMED, counted
from fedra.runners.base import Runner
from fedra.storage.claims import claim
from fedra.writing import write_atomically


def recognize(
    evaluator: ClientEvaluator,
    job: Job,
    make_runner: Callable[[Job], Runner],
    server: Server,
    memory: Callable[[int], Tree],
    rounds: int,
    console: Console | None = None,
) -> dict[str, Recognition]:
    """Test the clients with the initial model, the final global model and, if there are any, personal models.

    Clients whose personal model diverged are missing from the last, and those whose model collapsed have no scores.
    """
    found = {
        "frozen": evaluator.shared(job.model, job.model.start),
        "global": evaluator.shared(job.model, server.weights),
    }
    if job.algorithm.personalize is None:
        return found
    with steps(console, "personal models", len(evaluator.devices)) as done:
        tested = [device.client for device in evaluator.devices]
        own = train_personal_models(job, make_runner, server, memory, rounds, tested)
        found["personal"] = Recognition.of(_search_devices(evaluator, job, own, done))
    return found


def _search_devices(
    evaluator: ClientEvaluator, job: Job, own: Iterator[tuple[int, Weights | None]], done: Callable[[int], None]
) -> Iterator[tuple[int, Found | str]]:
    devices = {device.client: device for device in evaluator.devices}
    for client, weights in own:
        found = None if weights is None else evaluator.own(job.model, weights, devices[client])
        if found is not None:
            yield client, found
        done(1)


def diverged(evaluator: ClientEvaluator, found: Mapping[str, Recognition]) -> list[int]:
    """Return the tested clients whose personal models are not finite."""
    if "personal" not in found:
        return []
    own = found["personal"]
    known = own.found.keys() | own.collapsed.keys()
    return [device.client for device in evaluator.devices if device.client not in known]


def collapsed_clients(found: Mapping[str, Recognition]) -> dict[int, str]:
    """Return the tested clients whose personal models have collapsed, with the reasons."""
    return dict(found["personal"].collapsed) if "personal" in found else {}


def collapses(found: Mapping[str, Recognition]) -> dict[str, str]:
    """Return which shared models have collapsed, with the reasons."""
    reasons = {name: one.collapse_of_all() for name, one in found.items() if name != "personal"}
    return {name: reason for name, reason in reasons.items() if reason}


def result(evaluator: ClientEvaluator, found: Mapping[str, Recognition]) -> str:
    """Return the AUROCs as one line of text."""
    aurocs = {name: evaluator.metrics(one)["auroc"] for name, one in found.items()}
    values = ", ".join(f"{name} {'none' if value is None else f'{value:.4f}'}" for name, value in aurocs.items())
    return f"AUROC of {len(evaluator.devices)} clients against unseen identities, by model: {values}"


def summary_of(evaluator: ClientEvaluator, found: Mapping[str, Recognition]) -> dict[str, Any]:
    """Return the metrics for the summary, such as personal_auroc, and the numbers of clients and comparisons."""
    figures = {f"{name}_{key}": value for name, one in found.items() for key, value in evaluator.metrics(one).items()}
    reasons = {f"{name}_collapsed": reason for name, reason in collapses(found).items()}
    own = {"collapsed_clients": len(lost)} if (lost := collapsed_clients(found)) else {}
    counts = {"tested_clients": len(evaluator.devices), **evaluator.comparisons(), "fpir_wanted": evaluator.fpir}
    return {**figures, **reasons, **counts, **counted(diverged(evaluator, found)), **own}


def warnings(evaluator: ClientEvaluator, found: Mapping[str, Recognition]) -> Iterator[str]:
    """Yield warnings about a collapsed global model and collapsed personal models."""
    if reason := collapses(found).get("global"):
        yield collapse_warning(reason)
    if lost := collapsed_clients(found):
        more = f" and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
        yield (
            f"warning: the personal models of {len(lost)} of {len(evaluator.devices)} clients have collapsed and "
            "are left "
            f"out of the means (client {', '.join(map(str, list(lost)[:MAX_NAMED]))}{more})"
        )


def write_recognition(folder: Path, evaluator: ClientEvaluator, found: Mapping[str, Recognition]) -> None:
    """Write recognition.jsonl, one line per tested client, and recognition.svg, the distribution of AUROCs."""
    from fedra.faces.metrics.plots import draw_spread  # matplotlib is slow to import and only needed here

    aurocs = {name: one.aurocs() if one.found else {} for name, one in found.items()}
    lost, collapsed = set(diverged(evaluator, found)), collapsed_clients(found)
    lines = [
        {
            "client": device.client,
            "enrolled": len(device.enrolled),
            "probes": len(device.probes),
            "impostors": len(device.impostors),
            **{f"{name}_auroc": own.get(device.client) for name, own in aurocs.items()},
            **({"diverged": True} if device.client in lost else {}),
            **({"collapsed": collapsed[device.client]} if device.client in collapsed else {}),
        }
        for device in evaluator.devices
    ]
    claim(folder, "recognition.jsonl", "recognition.svg")
    write_atomically(folder / "recognition.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    if drawn := {name: list(own.values()) for name, own in aurocs.items() if own}:
        draw_spread(drawn, folder / "recognition.svg")
