"""The command line; commands import what they need when they run, so help is fast."""

from __future__ import annotations

import sys
from typing import Any

import typer

from fedra.cli import training  # isort: skip  (first in the list of commands)
from fedra.cli import deploy, evaluation, faces, galleries, inspection, plot_commands
from fedra.cli.app import app
from fedra.errors import FedraError

__all__ = ["app", "deploy", "evaluation", "faces", "galleries", "inspection", "main", "plot_commands", "training"]


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a user error is one line on standard error, never a traceback."""
    try:
        return app(args=arguments, standalone_mode=True)
    except FedraError as error:
        typer.echo(f"fedra: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        what = f"'{error.filename}'" if error.filename else "a file or the disk"
        typer.echo(f"fedra: {what} cannot be used: {error.strerror or error}", err=True)
        sys.exit(FedraError.exit_code)
