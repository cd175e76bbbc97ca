"""The command line. Commands import what they need when they run, so that help is quick."""

from __future__ import annotations

import sys
from typing import Any

import typer

from fedra.cli import training  # isort: skip  (first in the list of commands)
from fedra.cli import deploy, faces, galleries, judging, looking, pictures
from fedra.cli.app import app
from fedra.errors import FedraError

__all__ = ["app", "deploy", "faces", "galleries", "judging", "looking", "main", "pictures", "training"]


def main(arguments: list[str] | None = None) -> Any:
    """The entry point: a user's mistake is one sentence on standard error, never a traceback."""
    try:
        return app(args=arguments, standalone_mode=True)
    except FedraError as error:
        typer.echo(f"fedra: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        where = f"'{error.filename}'" if error.filename else "a file or the disk"
        typer.echo(f"fedra: {where} cannot be used: {error.strerror or error}", err=True)
        sys.exit(FedraError.exit_code)
