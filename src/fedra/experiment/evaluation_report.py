"""The report of an evaluation, to read, print and save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from fedra.evaluation.results import ModelEvaluation, Protocol, ProtocolResult
from fedra.reports.evaluation_tables import build_tables
from fedra.storage.evaluation_record import write_evaluation


@dataclass(frozen=True, repr=False)
class EvaluationReport:
    """The results of `fedra.evaluate`.

    `report.metrics["verification"]["accuracy"]` is a number, `report.table` has the formatted metrics,
    `report.print()` prints them, and `report.save(folder)` writes them to a file with plots.
    """

    found: ModelEvaluation
    model: Path | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """The name of the evaluation data."""
        return self.found.data

    @property
    def outcomes(self) -> dict[Protocol, ProtocolResult]:
        """All results, by protocol."""
        return self.found.outcomes

    @property
    def metrics(self) -> dict[str, Mapping[str, Any]]:
        """All metrics as numbers, by protocol."""
        return {name: outcome.metrics for name, outcome in self.found.outcomes.items()}

    @property
    def table(self) -> dict[str, dict[str, str]]:
        """All metrics as formatted text, by protocol."""
        return {name: outcome.table for name, outcome in self.found.outcomes.items()}

    def print(self, console: Console | None = None) -> None:
        """Print the tables.

        Args:
            console: Where to print; standard output if None.
        """
        shown = console or Console()
        for name, outcome in self.found.outcomes.items():
            shown.print(f"{name} on {self.data}", highlight=False, markup=False, soft_wrap=True)
            for table in build_tables(outcome):
                shown.print(table)

    def save(self, folder: Path | str, console: Console | None = None) -> Path:
        """Write eval-NAME.json with all metrics, and the plots next to it.

        Args:
            folder: Output folder, created if needed. Results of several protocols on the same data share one file.
            console: Where notes about older records are printed.

        Returns:
            The path of the JSON file.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        return write_evaluation(self.found, path, console, model=self.model, settings=self.settings)

    def __repr__(self) -> str:
        results = "; ".join(
            f"{name}: {', '.join(f'{key} {value}' for key, value in list(outcome.table.items())[:4])}"
            for name, outcome in self.found.outcomes.items()
        )
        return f"EvaluationReport({self.data!r}, {results})"
