"""What a page consists of: sections of blocks, which the templates render.

Texts are plain and escaped by the templates; only figures, which `inline_svg` writes, are markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from markupsafe import Markup


@dataclass(frozen=True)
class PageBlock:
    """Base class; `kind` names the template's macro."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Paragraph(PageBlock):
    """A sentence or two."""

    kind = "paragraph"
    text: str


@dataclass(frozen=True)
class Notice(PageBlock):
    """Sentences that a reader must not miss; `level` is "bad", "warn" or "info"."""

    kind = "notice"
    level: str
    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class SummaryCard:
    """A number with its name and a line of detail; a share between 0 and 1 is shown as a bar."""

    label: str
    value: str
    detail: str = ""
    share: float | None = None


@dataclass(frozen=True)
class SummaryCards(PageBlock):
    """The numbers at the top."""

    kind = "cards"
    cards: Sequence[SummaryCard]


@dataclass(frozen=True)
class TableCell:
    """A cell: its text, the number it is sorted by, a mark ("best", "bad", "differs"), and a color of a series."""

    text: str
    order: float | None = None
    mark: str = ""
    series: int | None = None
    detail: str = ""
    link: str = ""


@dataclass(frozen=True)
class DataTable(PageBlock):
    """A table that can be sorted by its headings; columns from `numbers` on are numbers."""

    kind = "table"
    headings: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    caption: str = ""
    numbers: int = 1
    sortable: bool = True
    name: str = ""
    narrow: bool = False


@dataclass(frozen=True)
class PageFigure:
    """A figure with its title and a line below it; a wide one has a second drawing for narrow screens."""

    title: str
    svg: Markup
    caption: str = ""
    narrow: Markup | None = None


@dataclass(frozen=True)
class FigureGrid(PageBlock):
    """Figures side by side."""

    kind = "figures"
    figures: Sequence[PageFigure]


@dataclass(frozen=True)
class LegendEntry:
    """One series of all figures: its number, its label, and its dashes as in SVG."""

    number: int
    label: str
    color: int
    dashes: str


@dataclass(frozen=True)
class SeriesLegend(PageBlock):
    """The legend of all figures that follow; its entries show and hide a series."""

    kind = "legend"
    entries: Sequence[LegendEntry]


@dataclass(frozen=True)
class Tabs(PageBlock):
    """Blocks of which one is shown at a time; without scripts all are shown, each below its title."""

    kind = "tabs"
    name: str
    panels: Sequence[tuple[str, Sequence[PageBlock]]]


@dataclass(frozen=True)
class StoredPicture:
    """A picture from a file, as a data URI."""

    source: str
    title: str
    caption: str = ""


@dataclass(frozen=True)
class PictureGrid(PageBlock):
    """Pictures from files; they keep their white ground."""

    kind = "pictures"
    pictures: Sequence[StoredPicture]


@dataclass(frozen=True)
class CodeBlock(PageBlock):
    """Commands or a file, to be copied."""

    kind = "code"
    text: str
    title: str = ""


@dataclass(frozen=True)
class Disclosure(PageBlock):
    """Blocks behind a title, closed at first; printed open."""

    kind = "details"
    title: str
    blocks: Sequence[PageBlock]
    name: str = ""


@dataclass(frozen=True)
class PageSection:
    """A section of the page with an anchor."""

    name: str
    title: str
    blocks: Sequence[PageBlock] = field(default_factory=tuple)
    lead: str = ""
