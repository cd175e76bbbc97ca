"""The job and the trained weights of a finished run, and the examples of its splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedra.config.imports import allow_trusted_imports
from fedra.core.batches import Examples
from fedra.core.job import Job
from fedra.core.model import Weights
from fedra.core.random import generator
from fedra.errors import ConfigError, DataError, RunError, nearest
from fedra.experiment.build import Built, build
from fedra.models.pretrained import set_weights
from fedra.storage.model_file import read_model_file
from fedra.storage.run_folder import RunFolder

SPLITS = ("test", "train")


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its folder, its job and data, and the global model's weights."""

    folder: RunFolder
    built: Built
    weights: Weights


def open_trained_run(
    run: Path | str, *, device: str | None = None, trust: bool = False, settings: dict[str, Any] | None = None
) -> TrainedRun:
    """Build the job of a finished run and load the global model.

    Args:
        run: Folder of a finished run.
        device: Device to run the model on; that of the run's configuration if None.
        trust: Whether to import the functions that the run names as `module:function`.
        settings: Top-level keys of the configuration to replace, such as the precision.

    Returns:
        The folder, the job and the weights.
    """
    folder = RunFolder(run)
    config = folder.config()
    trained = folder.path / "model.safetensors"
    if not trained.exists():
        raise RunError(
            f"the run in '{folder.path}' must be finished, got no {trained.name}: continue it with --resume "
            f"{folder.path}"
        )
    # The initial weights are not needed, and their file may no longer exist.
    section = config.model.model_copy(update={"weights": None})
    changed = {"model": section, "device": device or config.device} | (settings or {})
    with allow_trusted_imports(config, trust, f"the run in '{folder.path}'"):
        built = build(config.model_copy(update=changed))
    model = built.job.model
    set_weights(model.module, read_model_file(trained).tensors, trained)
    return TrainedRun(folder, built, Weights(*(model.arrange(values) for values in model.weights())))


def check_split(split: str) -> None:
    """Raise unless a split is known."""
    if split not in SPLITS:
        raise ConfigError(f"split must be 'test' or 'train', got '{split}': {nearest(split, SPLITS)}")


def split_examples(job: Job, split: str) -> tuple[int, Iterator[tuple[int, Examples]]]:
    """Return the number of examples and an iterator over clients, which loads one client at a time."""
    if split == "train":
        everyone = range(len(job.clients))
        return sum(map(job.clients.size, everyone)), ((client, _labeled(job, client)) for client in everyone)
    if job.test is None or not len(job.test):
        raise DataError("the run's data set must have test examples, got none: use the split 'train'")
    return len(job.test), iter([(0, job.test)])


def _labeled(job: Job, client: int) -> Examples:
    """Return a client's examples with global labels; clients that own classes number them locally."""
    own = job.clients[client]
    return own if job.owners is None else replace(own, targets=job.owners.holdings[client][own.targets])


def sample_examples(job: Job, split: str, most: int, seed: int) -> Examples:
    """Return at most `most` examples of a split, drawn by the seed from all clients, without augmentation."""
    total, sources = split_examples(job, split)
    chosen = torch.randperm(total, generator=generator(seed, "examples"))[:most].sort().values
    inputs, targets, start = [], [], 0
    transform = None
    for _, examples in sources:
        rows = chosen[(chosen >= start) & (chosen < start + len(examples))] - start
        start += len(examples)
        transform = examples.transform
        if len(rows):
            inputs.append(examples.inputs[rows.to(examples.inputs.device)])
            targets.append(examples.targets[rows.to(examples.targets.device)])
    if transform is None:
        raise DataError(f"the run's data must have '{split}' examples, got none")
    return Examples(torch.cat(inputs), torch.cat(targets), transform)
