"""Errors that a user can fix, each with a one-line message: what must hold, what was given, where, and what to do.

The command line prints the message and exits with `exit_code`; only bugs in fedra print a traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

LONG_NUMBER = re.compile(r"\d{20,}")
"""Bounds such as 1e30, which pydantic writes out."""

SOME_RUNS_FAILED = 3
"""Exit code of a command that trained several runs, some of which failed."""


class FedraError(Exception):
    """Base class of all errors that a user can fix.

    Args:
        message: What must hold, what was given, where, and what to do.

    Attributes:
        exit_code: The exit code of the command line for this error.

    Returns:
        An exception; catch it to handle every error that fedra raises on purpose.

    Example:
        >>> import fedra
        >>> try:
        ...     fedra.run({"rounds": 0})
        ... except fedra.FedraError as error:
        ...     print(type(error).__name__, error.exit_code)
        ConfigError 2
    """

    exit_code = 1


class ConfigError(FedraError, ValueError):
    """A configuration, an argument or a combination of parts is invalid. It is also a `ValueError`.

    Args:
        message: What must hold, what was given, where, and what to do.

    Returns:
        An exception with exit code 2.

    Example:
        >>> import fedra
        >>> try:
        ...     fedra.run({"round": 3})
        ... except fedra.ConfigError as error:
        ...     print("did you mean 'rounds'?" in str(error))
        True
    """

    exit_code = 2


class DataError(FedraError):
    """A data file is missing, damaged or in the wrong format.

    Args:
        message: What must hold, what was given, where, and what to do.

    Returns:
        An exception with exit code 1.

    Example:
        >>> import fedra
        >>> try:
        ...     fedra.run({"data": {"name": "imagefolder", "path": "missing"}})
        ... except fedra.DataError as error:
        ...     print("missing" in str(error))
        True
    """


class RunError(FedraError):
    """A run cannot continue: its folder is damaged or in use, or its workers die.

    Args:
        message: What must hold, what was given, where, and what to do.

    Returns:
        An exception with exit code 1.

    Example:
        >>> import fedra
        >>> issubclass(fedra.RunFailed, fedra.RunError)
        True
    """


class RunFailed(RunError):
    """A run failed and would fail again: it diverged, or its clients do not respond.

    Args:
        message: What must hold, what was given, where, and what to do.
        ending: The same in a few words for a table, such as "diverged in round 26".

    Returns:
        An exception with exit code 1 and the attribute `ending`.

    Example:
        >>> import fedra
        >>> fedra.RunFailed("the loss became NaN in round 26", "diverged in round 26").ending
        'diverged in round 26'
    """

    def __init__(self, message: str, ending: str = "failed") -> None:
        super().__init__(message)
        self.ending = ending


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint for the end of a message: the nearest valid name, or all names if none is close."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"choose one of: {', '.join(names)}"


def shorten_requirement(message: str) -> str:
    """Shorten a pydantic message such as "Input should be greater than or equal to 1" to "at least 1"."""
    prefix = "Input should be "
    if not message.startswith(prefix):
        return f"valid ({message[:1].lower()}{message[1:]})"
    requirement = message.removeprefix(prefix).partition(", unable to parse")[0]
    requirement = requirement.replace("a valid integer", "an integer").replace("a valid ", "a ")
    requirement = requirement.replace("greater than or equal to", "at least").replace(
        "less than or equal to", "at most"
    )
    return LONG_NUMBER.sub(lambda found: f"{float(found[0]):g}", requirement)


def shorten(value: object, longest: int = 80) -> str:
    """Return the representation of a value for a message, cut off if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        return "a number of more than 4300 digits"
    return text if len(text) <= longest else f"{text[:longest]}..."
