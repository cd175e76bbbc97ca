"""The tasks of workers, for process pools and for Ray."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from fedra.core.evaluate import count, evaluation_batches
from fedra.core.job import Job, run_client
from fedra.core.model import Weights
from fedra.core.tree import Tree
from fedra.errors import FedraError

ATTEMPTS = 3
"""Number of workers that may die at a task before the run fails."""

BATCHES_PER_TASK = 8
"""Evaluation batches per task: enough to make the cost of messages negligible."""


@dataclass(frozen=True)
class Train:
    """Train a client; the answer is its new state and its upload."""

    round: int
    client: int
    received: Tree
    memory: Tree


@dataclass(frozen=True)
class Evaluate:
    """Evaluate some batches of the test set; the answer is their counts."""

    batches: tuple[tuple[int, int], ...]


Task = Train | Evaluate


def evaluation_tasks(examples: int) -> list[Evaluate]:
    """The tasks that evaluate this many examples."""
    batches = evaluation_batches(examples)
    return [Evaluate(tuple(batches[i : i + BATCHES_PER_TASK])) for i in range(0, len(batches), BATCHES_PER_TASK)]


def run_task(task: Task, job: Job, weights: Weights) -> Any:
    """The answer to a task, or its error in a form that can be pickled."""
    try:
        if isinstance(task, Train):
            return run_client(job, task.round, task.client, weights, task.received, task.memory)
        arranged = Weights(job.model.arrange(weights.params), job.model.arrange(weights.buffers))
        assert job.evaluated_examples is not None
        return count(job.model, arranged, job.evaluated_examples, job.classes, task.batches, job.keep_scores)
    except Exception as error:
        return make_picklable(error)


def make_picklable(error: Exception) -> Exception:
    """The error with its traceback as a note, or a RuntimeError with its text if it cannot be pickled."""
    if not isinstance(error, FedraError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.dumps(error)
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            plain.add_note(note)
        return plain
    return error
