"""The command line; commands import what they need when they run, so help is fast."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer

from fedra.cli import training  # isort: skip  (first in the list of commands)
from fedra.cli import (
    analysis_commands,
    audit_command,
    cache_commands,
    deploy,
    dynamics_commands,
    evaluation,
    faces,
    federate,
    federation_runs,
    figure_commands,
    galleries,
    inspection,
    page_commands,
    plot_commands,
    privacy_commands,
    reproducing,
    site,
)
from fedra.cli.app import app
from fedra.cli.failure_report import describe_failure, is_memory
from fedra.errors import FedraError

__all__ = [
    "analysis_commands",
    "app",
    "audit_command",
    "cache_commands",
    "deploy",
    "dynamics_commands",
    "evaluation",
    "faces",
    "federate",
    "federation_runs",
    "figure_commands",
    "galleries",
    "inspection",
    "main",
    "page_commands",
    "plot_commands",
    "privacy_commands",
    "reproducing",
    "site",
    "training",
]


PIPE_CLOSED = 141
"""Exit code of a command whose output is no longer read, as of a process that SIGPIPE ended."""

DEBUG = "--debug"
"""The option, at any place of the command line, that shows tracebacks."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; an error is one line on standard error, and a traceback only with --debug."""
    given = sys.argv[1:] if arguments is None else arguments
    end = given.index("--") if "--" in given else len(given)
    words = [word for place, word in enumerate(given) if word != DEBUG or place > end]
    try:
        return app(args=words, prog_name="fedra", standalone_mode=True)
    except SystemExit as end:
        if _is_pipe_closed(end):
            sys.exit(PIPE_CLOSED)
        raise
    except Exception as error:  # whatever it is, a user gets a sentence
        if len(words) < len(given):
            traceback.print_exc()
        told, code = _describe(error, words)
        typer.echo(f"fedra: {told}", err=True)
        sys.exit(code)


def _is_pipe_closed(end: SystemExit) -> bool:
    """Return whether the reader of the output, such as `head -1`, is gone."""
    if isinstance(end.__context__, BrokenPipeError):
        return True
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (Python flushes it when it ends)
        return True
    return False


def _describe(error: Exception, words: list[str]) -> tuple[str, int]:
    """Return the sentence and the exit code of an error."""
    if isinstance(error, FedraError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and not is_memory(error):
        what = f"'{error.filename}'" if error.filename else "a file or the disk"
        return f"{what} cannot be used: {error.strerror or error}", FedraError.exit_code
    return describe_failure(error, words), FedraError.exit_code
