"""The tables and figures of the papers as data: what is run, what the paper printed, and what it claims.

One folder per paper in `papers/`: `paper.toml` has the citation and the sizes, every other file is an entry.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, cast

import fedra
from fedra.errors import ConfigError, nearest
from fedra.reproduce.verdicts import Claim

PAPERS = ("fedarc", "fedgc", "fedsol", "fedfs", "adaptive-margin")
"""The papers by the name of their method."""
SIZES = ("quick", "small", "medium", "paper")
"""Quick takes a few minutes at most and no data, small minutes on two cores, medium an hour; paper is as printed."""

EntryKind = Literal["table", "figure", "picture", "settings", "text"]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A row or a column of a table.

    Args:
        name: Its heading.
        settings: Dotted keys of the configuration with their values.
        after: The same, applied after the size's settings.
        sizes: The sizes that have it; all if empty.
        columns: For a row: the columns that it has; all if empty.
        metric: For a column: what is read off a run; the entry's metric if empty.
        config: For a column: a configuration of its own.
        at: For a column: its position on the axis of a figure.
        panel: For a column: the panel of a figure.
    """

    name: str
    settings: Settings = field(default_factory=dict)
    after: Settings = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    metric: str = ""
    config: str = ""
    at: float | None = None
    panel: str = ""


@dataclass(frozen=True)
class SizeSettings:
    """How an entry is run at a size.

    Args:
        config: The configuration that the runs start from.
        settings: Dotted keys that are set last.
        rows: The rows to run; all if empty.
        columns: The columns to run; all if empty.
        data: What stands in for the paper's data, in one sentence.
        supply: What the user must supply.
        first: A run whose model the others start from: `config`, `set`, and the `key` that receives its folder. With
            `vary`, as below, every seed has a start of its own.
        vary: Keys of further seeds, such as data.seed, that grow with the run's seed: every seed then has data of its
            own, and a verdict is about more than one draw of them.
    """

    config: str = ""
    settings: Settings = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    data: str = ""
    supply: str = ""
    first: Settings = field(default_factory=dict)
    vary: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaperEntry:
    """A table or figure of a paper.

    Args:
        paper: The paper's name, from `PAPERS`.
        name: Such as table1 or figure2.
        title: What it shows.
        kind: "table" and "figure" train; "picture" draws without training; "settings" compares settings; "text" has
            nothing to run.
        citation: The paper.
        metric: What is read off a run, unless a column says otherwise.
        unit: The unit of the numbers.
        note: What the reader must know.
        draw: How a figure is drawn.
        command: The command that draws a picture, or shows what a text describes.
        rows: The rows.
        columns: The columns.
        printed: The paper's numbers by row and column: the number, and its standard deviation if printed.
        claims: What the paper claims about them.
        sizes: How it is run at each size.
    """

    paper: str
    name: str
    title: str
    kind: EntryKind
    citation: str
    metric: str = "final_accuracy"
    unit: str = "%"
    note: str = ""
    draw: str = ""
    command: str = ""
    rows: tuple[Line, ...] = ()
    columns: tuple[Line, ...] = ()
    printed: Mapping[tuple[str, str], tuple[float | str, float | None]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    sizes: Mapping[str, SizeSettings] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Such as fedsol table1."""
        return f"{self.paper} {self.name}"

    @property
    def trains(self) -> bool:
        """Whether it has runs."""
        return self.kind in ("table", "figure")

    @property
    def available(self) -> list[str]:
        """The sizes at which it can be run."""
        return [size for size, settings in self.sizes.items() if settings.config]

    def lines(self, size: str) -> tuple[list[Line], list[Line]]:
        """Return the rows and columns at a size."""
        chosen = self.sizes[size]

        def keep(line: Line, names: tuple[str, ...]) -> bool:
            return (not line.sizes or size in line.sizes) and (not names or line.name in names)

        rows = [row for row in self.rows if keep(row, chosen.rows)]
        return rows, [column for column in self.columns if keep(column, chosen.columns)]


@cache
def list_entries(paper: str) -> tuple[PaperEntry, ...]:
    """Return all entries of a paper: tables, then figures, then the rest, in the paper's order.

    Args:
        paper: A name from `PAPERS`.

    Returns:
        The entries.

    Example:
        >>> [entry.name for entry in list_entries("fedarc")]
        ['table1', 'table2', 'figure1', 'figure2']
    """
    common = read_paper(paper)
    folder = files("fedra.reproduce") / "papers" / paper
    found = [
        _read_entry(paper, file.name.removesuffix(".toml"), tomllib.loads(file.read_text(encoding="utf-8")), common)
        for file in folder.iterdir()
        if file.name.endswith(".toml") and file.name != "paper.toml"
    ]
    return tuple(sorted(found, key=_order))


def read_paper(paper: str) -> dict[str, Any]:
    """Read what all entries of a paper have in common.

    Args:
        paper: A name from `PAPERS`.

    Returns:
        The citation, the control that decides its claims, what was found here, and the sizes.

    Example:
        >>> read_paper("fedgc")["citation"][:13]
        'Niu and Deng,'
    """
    if paper not in PAPERS:
        raise ConfigError(f"the paper must be one of {', '.join(PAPERS)}, got '{paper}': {nearest(paper, PAPERS)}")
    path = files("fedra.reproduce") / "papers" / paper / "paper.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _order(entry: PaperEntry) -> tuple[int, int, str]:
    word = re.match(r"(table|figure)(\d+)", entry.name)
    if word is None:
        return 2, 0, entry.name
    return ("table", "figure").index(word[1]), int(word[2]), entry.name


def find_entry(paper: str, name: str) -> PaperEntry:
    """Return an entry by its name.

    Args:
        paper: A name from `PAPERS`.
        name: Such as table1, "table 1", t1, figure2 or f2.

    Returns:
        The entry.

    Example:
        >>> find_entry("fedsol", "figure 2").label
        'fedsol figure2'
    """
    by_name = {entry.name: entry for entry in list_entries(paper)}
    word = re.sub(r"[\s_-]+", "", name.lower())
    word = re.sub(r"^(t|tab)(?=\d)", "table", re.sub(r"^(f|fig)\.?(?=\d)", "figure", word))
    for candidate in (name, word):
        if candidate in by_name:
            return by_name[candidate]
    raise ConfigError(f"'{paper}' must have the table or figure, got '{name}': {nearest(word, by_name)}")


def _read_entry(paper: str, name: str, table: dict[str, Any], common: Mapping[str, Any]) -> PaperEntry:
    rows = tuple(map(_line, table.get("row", ())))
    columns = tuple(map(_line, table.get("column", ())))
    wanted = common.get("size", {}) if table["kind"] in ("table", "figure") else {}
    sizes = {size: _size(wanted.get(size, {}), table.get("size", {}).get(size, {}), table) for size in SIZES}
    return PaperEntry(
        paper=paper,
        name=name,
        title=table["title"],
        kind=table["kind"],
        citation=common["citation"],
        metric=table.get("metric", "final_accuracy"),
        unit=table.get("unit", "%"),
        note=table.get("note", ""),
        draw=table.get("draw", ""),
        command=table.get("command", ""),
        rows=rows,
        columns=columns,
        printed=_printed(name, table.get("printed", {}), columns),
        claims=tuple(map(_claim, table.get("claim", ()))),
        sizes=sizes,
    )


def _line(table: Mapping[str, Any]) -> Line:
    renamed = {("settings" if key == "set" else key): value for key, value in table.items()}
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in renamed.items()}
    return Line(**fields)


def _size(common: Mapping[str, Any], own: Mapping[str, Any], table: Mapping[str, Any]) -> SizeSettings:
    """Merge the paper's settings of a size with the entry's; the entry's win."""
    merged = {**common, **own}
    if not merged or merged.get("skip"):
        return SizeSettings()
    return SizeSettings(
        config=own.get("config") or table.get("config") or common.get("config", ""),
        settings={**common.get("set", {}), **own.get("set", {})},
        rows=tuple(merged.get("rows", ())),
        columns=tuple(merged.get("columns", ())),
        data=merged.get("data", ""),
        supply=merged.get("supply", ""),
        first=merged.get("first", {}),
        vary=tuple(merged.get("vary", ())),
    )


def _printed(
    name: str, table: Mapping[str, list[Any]], columns: tuple[Line, ...]
) -> dict[tuple[str, str], tuple[float | str, float | None]]:
    """Read the paper's numbers: a number, a pair with its deviation, a text, or "" where the paper has none."""
    found: dict[tuple[str, str], tuple[float | str, float | None]] = {}
    for row, cells in table.items():
        if len(cells) > len(columns):
            raise ConfigError(f"'{name}' must have at most {len(columns)} numbers in row '{row}', got {len(cells)}")
        for column, cell in zip(columns, cells, strict=False):
            if isinstance(cell, list):
                found[row, column.name] = (float(cell[0]), float(cell[1]))
            elif cell != "":
                found[row, column.name] = (cell if isinstance(cell, str) else float(cell), None)
    return found


def _claim(table: Mapping[str, Any]) -> Claim:
    lists = {key: tuple([value] if isinstance(value, str) else value) for key, value in table.items() if key in LISTS}
    return Claim(**{**cast(dict[str, Any], dict(table)), **lists})


LISTS = ("left", "right", "columns", "other_columns")


def config_path(name: str) -> Path:
    """Return the path of a shipped configuration, in the installed package or in the source tree.

    Args:
        name: Its path below `configs`, such as fedsol/table1.toml.

    Returns:
        The path of the file.

    Example:
        >>> config_path("quickstart.toml").name
        'quickstart.toml'
    """
    package = Path(fedra.__file__).parent
    for folder in (package / "configs", package.parent.parent / "configs"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"the shipped configuration '{name}' must exist, got none: reinstall fedra")
