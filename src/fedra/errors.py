"""Mistakes a user can make, each told in one sentence: what was wrong, where, and what to do.

The command line prints the sentence and exits with `exit_code`; a traceback is for our own faults only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SOME_RUNS_FAILED = 3
"""The exit code of a command that trains several runs and finished, although some of them failed."""


class FedraError(Exception):
    """Something the user can put right."""

    exit_code = 1


class ConfigError(FedraError):
    """A configuration, an argument or a combination of parts that cannot be used."""

    exit_code = 2


class DataError(FedraError):
    """A data file that is missing, damaged or not what it claims to be."""


class RunError(FedraError):
    """A run that cannot go on here: its folder is damaged, or its workers die."""


class RunFailed(RunError):
    """A run that came to a bad end, and would again: it diverged, or its clients do not answer.

    `ending` says the same in the few words that fit into a table, such as "diverged in round 26".
    """

    def __init__(self, message: str, ending: str = "failed") -> None:
        super().__init__(message)
        self.ending = ending


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of a sentence that helps: the nearest valid name, or all of them when none is near."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"choose one of: {', '.join(names)}"
