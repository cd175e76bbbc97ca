"""What is tested once, when all rounds are done."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.console import Console

from fedra.callbacks.screen import warn_of_restarts
from fedra.config.schema import Config
from fedra.console import steps, tell
from fedra.core.job import Job
from fedra.evaluation.personal_models import personalised
from fedra.experiment.build import build_runner
from fedra.experiment.evaluators.client_evaluator import ClientsJudge
from fedra.experiment.evaluators.evaluator import Judge
from fedra.experiment.evaluators.recognition import diverged, recognise, result, summary_of, warnings, write_recognition
from fedra.experiment.rounds import note_losses
from fedra.reports import client_models as personal_report
from fedra.storage.run_folder import RunFolder
from fedra.storage.state import State


def last_test(
    config: Config, judge: Judge, job: Job, state: State, folder: RunFolder | None, console: Console | None
) -> dict[str, Any]:
    """What is tested once, after the last round: every client's own model, or all models among strangers."""
    if not isinstance(judge, ClientsJudge):
        return _personalise(config, job, state, folder, console) if job.algorithm.personalise else {}
    found = recognise(judge, job, partial(build_runner, config), state.server, state.memory.get, state.round, console)
    tell(console, result(judge, found))
    for warning in warnings(judge, found):
        tell(console, warning)
    tell(console, personal_report.warning(diverged(judge, found), len(judge.devices)))
    if folder:
        write_recognition(folder.path, judge, found)
    losses = state.memory.losses()
    warn_of_restarts(console, [{"client": client, "restarted": reason} for client, reason in losses.items()])
    return summary_of(judge, found) | ({"personalised_restarted": len(losses)} if losses else {})


def _personalise(
    config: Config, job: Job, state: State, folder: RunFolder | None, console: Console | None
) -> dict[str, float | None]:
    """Every client's own model after the last round: figures for the summary, a line per client for the record."""
    assert job.algorithm.personalise is not None, "the algorithm has no personaliser"
    if job.test is None:
        tell(console, "clients' own models are not tested: the data set has no test examples")
        return {}
    total = len(job.clients) * len(job.algorithm.personalise.stages)
    with steps(console, "every client's own model", total) as done:
        outcome = personalised(job, partial(build_runner, config), state.server, state.memory.get, state.round, done)
    tell(console, personal_report.result(outcome))
    tell(console, personal_report.warning(outcome.diverged, len(job.clients)))
    lines = personal_report.lines(job, outcome)
    note_losses(lines, state.memory.losses())
    warn_of_restarts(console, lines)
    if folder:
        personal_report.write(folder.path, outcome, lines)
    restarted = sum("restarted" in line for line in lines)
    counts = personal_report.counted(outcome.diverged) | ({"personalised_restarted": restarted} if restarted else {})
    return outcome.figures() | counts
