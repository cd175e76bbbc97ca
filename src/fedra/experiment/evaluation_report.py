"""What an evaluation found, to read, print and save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.evaluation.results import ModelEvaluation, Protocol, ProtocolResult
from fedra.reports.evaluation_tables import tables_of
from fedra.storage.evaluation_record import write_evaluation


@dataclass(frozen=True, repr=False)
class EvaluationReport:
    """What an evaluation found.

    `report.figures["verification"]["accuracy"]` is a number, `report.table` the lines that people read,
    `report.print()` shows them, and `report.save(folder)` writes a record with pictures.
    """

    found: ModelEvaluation
    model: Path | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """What the model was evaluated on."""
        return self.found.data

    @property
    def outcomes(self) -> dict[Protocol, ProtocolResult]:
        """Everything that was found, by protocol."""
        return self.found.outcomes

    @property
    def figures(self) -> dict[str, Mapping[str, Any]]:
        """All figures, by protocol."""
        return {name: outcome.figures for name, outcome in self.found.outcomes.items()}

    @property
    def table(self) -> dict[str, dict[str, str]]:
        """The lines that people read, by protocol."""
        return {name: outcome.table for name, outcome in self.found.outcomes.items()}

    def print(self, console: Console | None = None) -> None:
        """Show the tables.

        Args:
            console: Where to; the standard output if None.
        """
        shown = console or Console()
        for name, outcome in self.found.outcomes.items():
            shown.print(f"{name} on {self.data}", highlight=False, markup=False, soft_wrap=True)
            for table in tables_of(outcome):
                shown.print(table)

    def save(self, folder: Path | str, console: Console | None = None) -> Path:
        """Write eval-NAME.json with every figure, and the pictures beside it.

        Args:
            folder: Where to; it is made if need be. Records of several protocols on one set gather in one file.
            console: Is told what became of older records.

        Returns:
            The record's path.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        return write_evaluation(self.found, place, console, model=self.model, settings=self.settings)

    def __repr__(self) -> str:
        told = "; ".join(
            f"{name}: {', '.join(f'{key} {value}' for key, value in list(outcome.table.items())[:4])}"
            for name, outcome in self.found.outcomes.items()
        )
        return f"EvaluationReport({self.data!r}, {told})"
