"""All figures of an evaluation as one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedra.errors import DataError
from fedra.writing import write_atomically


def write_figures(path: Path, figures: Mapping[str, object]) -> None:
    """Write figures, such as the `figures()` of this package give, as JSON; a number that is not finite is refused."""
    try:
        text = json.dumps(figures, indent=1, allow_nan=False)
    except ValueError:
        raise DataError(f"a figure for '{path}' is NaN or infinite: it was not measured") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text + "\n").encode())
