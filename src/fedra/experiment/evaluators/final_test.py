"""The final tests, after the last round."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.callbacks.best_model import BestModel
from fedra.callbacks.screen import warn_of_restarts
from fedra.config.schema import Config
from fedra.console import steps, tell
from fedra.core.evaluate import evaluate
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.evaluation.classifier_metrics import METRICS
from fedra.evaluation.client_tests import ClientTests, testable_rows
from fedra.evaluation.metrics import DEFAULT, compute_metrics, compute_probabilities
from fedra.evaluation.personal_models import personalized
from fedra.experiment import optional
from fedra.experiment.build import Built, build_runner
from fedra.experiment.evaluators.round_summary import Measures
from fedra.experiment.rounds import mark_restarts
from fedra.reports import client_models as personal_report
from fedra.storage.claims import claim
from fedra.storage.run_folder import RunFolder
from fedra.storage.state import State
from fedra.writing import write_atomically


def run_final_tests(
    config: Config,
    built: Built,
    job: Job,
    state: State,
    folder: RunFolder | None,
    console: Console | None,
    best: BestModel | None = None,
) -> dict[str, Any]:
    """Run the tests after the last round, and return their part of the summary.

    These are, as configured: the test set if rounds were tested on validation examples, metrics by class, the test of
    every client, personal models, or all models on unseen identities.
    """
    if built.protocol == "clients" and isinstance(built.evaluator, optional.ClientEvaluator):
        return _recognize(config, built.evaluator, job, state, folder, console)
    found = _test(built, job, state.server.weights, folder, console, best)
    if job.algorithm.personalize is not None:
        return found | _personalize(config, built.measures, job, state, folder, console)
    return found | (_test_clients(built.measures, job, state, folder, console) if config.evaluation.per_client else {})


def _test(
    built: Built, job: Job, weights: Weights, folder: RunFolder | None, console: Console | None, best: BestModel | None
) -> dict[str, Any]:
    """Measure the test set after rounds on validation examples: `test_` of the last model, `best_test_` of the best."""
    found: dict[str, Any] = {}
    if job.validation is not None:
        found |= {"rounds_tested_on": "validation", "validation_examples": len(job.validation)}
    if job.test is None or built.protocol != "classification" or not (built.measures.tables or job.validation):
        return found
    figures = measure(job, weights, built.measures, tables=True)
    found |= {metric.key: figures.pop(metric.key) for metric in built.measures.tables}
    if built.measures.tables:
        found["classes"] = list(built.dataset.classes)
    if folder and METRICS["confusion"] in built.measures.tables:
        from fedra.evaluation.confusion_plot import draw_confusion  # matplotlib is slow to import

        claim(folder.path, "confusion.svg", "confusion.csv")
        draw_confusion(found["confusion"], built.dataset.classes, folder.path / "confusion.svg")
    if job.validation is None:
        return found
    found |= {f"test_{key}": value for key, value in figures.items()}
    chosen = None if best is None else best.weights(like=weights)
    if best is not None and chosen is not None:
        at_best = measure(job, chosen, built.measures)
        found |= {f"best_test_{key}": value for key, value in at_best.items()}
        tell(console, _outcome(built.measures, best, figures, at_best))
    return found


def measure(job: Job, weights: Weights, measures: Measures, tables: bool = False) -> dict[str, Any]:
    """Compute the metrics of a model on the test set; with `tables`, also those by class."""
    assert job.test is not None, "the job has no test set"
    counts = evaluate(job.model, weights, job.test, job.classes, scores=True)
    assert counts.logits is not None, "the scores were asked for"
    metrics = measures.metrics if tables else measures.single
    figures: dict[str, Any] = {"accuracy": counts.accuracy, "loss": counts.mean_loss}
    others = [metric for metric in metrics if metric.name not in DEFAULT]
    return figures | compute_metrics(others, job.test.targets, compute_probabilities(counts.logits))


def _outcome(measures: Measures, best: BestModel, last: dict[str, Any], at_best: dict[str, Any]) -> str:
    shown = dict.fromkeys((METRICS["accuracy"], measures.best))
    parts = [f"{one.name} {one.text(at_best[one.key])} (last round {one.text(last[one.key])})" for one in shown]
    return f"test set, model of round {best.round}, the best on validation by {measures.best.name}: {', '.join(parts)}"


def _test_clients(
    measures: Measures, job: Job, state: State, folder: RunFolder | None, console: Console | None
) -> dict[str, Any]:
    """Test the final model on each client's distribution of classes, and write client-tests.jsonl."""
    if job.test is None:
        tell(console, "clients are not tested, because the data set has no test examples")
        return {}
    tests = testable_rows(job)
    metrics = [metric for metric in measures.single if metric.name not in DEFAULT]
    found = ClientTests.of(job, state.server.weights, tests, metrics)
    if len(tests) < len(job.clients):
        tell(
            console,
            f"{len(job.clients) - len(tests)} clients are not tested, because the test set has none of their classes",
        )
    if folder:
        claim(folder.path, "client-tests.jsonl")
        _write_lines(folder.path / "client-tests.jsonl", found.lines(job, tests))
    return found.summary()


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _recognize(
    config: Config,
    evaluator: optional.ClientEvaluator,
    job: Job,
    state: State,
    folder: RunFolder | None,
    console: Console | None,
) -> dict[str, Any]:
    recognition = optional.recognition
    found = recognition.recognize(
        evaluator, job, partial(build_runner, config), state.server, state.memory.get, state.round, console
    )
    tell(console, recognition.result(evaluator, found))
    for warning in recognition.warnings(evaluator, found):
        tell(console, warning)
    tell(console, personal_report.warning(recognition.diverged(evaluator, found), len(evaluator.devices)))
    if folder:
        recognition.write_recognition(folder.path, evaluator, found)
    losses = state.memory.losses()
    warn_of_restarts(console, [{"client": client, "restarted": reason} for client, reason in losses.items()])
    return recognition.summary_of(evaluator, found) | ({"personalized_restarted": len(losses)} if losses else {})


def _personalize(
    config: Config, measures: Measures, job: Job, state: State, folder: RunFolder | None, console: Console | None
) -> dict[str, float | None]:
    """Train and test the personal models after the last round, and write one record per client."""
    assert job.algorithm.personalize is not None, "the algorithm has no personalizer"
    if job.test is None:
        tell(console, "personal models are not tested, because the data set has no test examples")
        return {}
    metrics = [metric for metric in measures.single if metric.name not in DEFAULT]
    total = len(job.clients) * len(job.algorithm.personalize.stages)
    make = partial(build_runner, config)
    with steps(console, "personal models", total) as done:
        outcome = personalized(job, make, state.server, state.memory.get, state.round, done, metrics)
    tell(console, personal_report.result(outcome))
    tell(console, personal_report.warning(outcome.diverged, len(job.clients)))
    lines = personal_report.lines(job, outcome)
    mark_restarts(lines, state.memory.losses())
    warn_of_restarts(console, lines)
    if folder:
        personal_report.write(folder.path, outcome, lines)
    restarted = sum("restarted" in line for line in lines)
    counts = personal_report.counted(outcome.diverged) | ({"personalized_restarted": restarted} if restarted else {})
    return outcome.summary() | counts
