"""Give a run more rounds than it was started with, so a finished one can be trained further."""

from __future__ import annotations

import math

from fedra.config import reading as configuration
from fedra.config.overrides import apply_changes
from fedra.config.schema import Config
from fedra.errors import ConfigError, RunError, shorten
from fedra.experiment.build import local_training
from fedra.storage.run_folder import RunFolder


def extend_run(folder: RunFolder, rounds: int) -> None:
    """Set the number of rounds of the run in a folder; a finished run can then be resumed.

    Args:
        folder: The run's folder.
        rounds: The new number of all rounds, those that are done included.
    """
    with folder.open_to_change() as config:
        table = config.model_dump()
        apply_changes(table, [(["rounds"], rounds, f"rounds={rounds}")])
        longer = configuration.read(table)
        done = folder.checkpoint.done() if folder.checkpoint.exists() else 0
        _check(folder, config, longer, done)
        for read in (folder.metrics, folder.clients):  # a damaged record is refused before anything is changed
            read()
        folder.reopen(longer)


def _check(folder: RunFolder, config: Config, longer: Config, done: int) -> None:
    if failure := folder.failure():
        raise RunError(f"the run in '{folder.path}' {failure}, so it cannot be trained further: start a new run")
    if folder.finished and not done:
        raise RunError(f"the run in '{folder.path}' has no checkpoint to continue from: start a new run")
    if longer.rounds <= done:
        raise ConfigError(
            f"rounds must be more than the {done} that the run in '{folder.path}' has done, got {longer.rounds}"
        )
    if config.privacy.level != "none":
        raise ConfigError(
            "a private run cannot be trained further, because its noise was chosen for its number of rounds: start a "
            "new run"
        )
    before, after = local_training(config.local, config.rounds), local_training(longer.local, longer.rounds)
    for number in range(done):
        if not math.isclose(before.at(number).lr, after.at(number).lr, rel_tol=1e-12):
            raise ConfigError(
                f"the learning rates of the {done} rounds that are done must not depend on the number of rounds, but "
                f"with local.schedule = {shorten(config.local.schedule)} they do: start a new run, or choose "
                "a schedule such as 'constant' or 'exponential'"
            )
