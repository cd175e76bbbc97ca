"""Figures as SVG inside of a page: no styles or scripts of their own, colors that follow the page's theme.

A strict content security policy forbids style attributes, so they become presentation attributes. Colors of the common
style become the page's variables, so a figure is readable on light and on dark ground. Text stays text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedra.pictures import COLORS, GRID, INK, QUIET

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
VARIABLES = {INK: "currentColor", QUIET: "var(--quiet)", GRID: "var(--grid)"} | {
    color: f"var(--series-{number})" for number, color in enumerate(COLORS)
}
DECLARATION = re.compile(r"\s*([\w-]+)\s*:\s*(.+?)\s*(?:;|$)")
DECIMALS = re.compile(r"-?\d+\.\d+")
REFERENCE = re.compile(r"url\(#([^)]+)\)")
SERIES = "series-"
"""Prefix of the gid of an artist that belongs to a group; the page shows and hides it by the class of that name."""


def render_inline(figure: Figure, name: str, label: str) -> Markup:
    """Return a figure as an SVG element.

    Args:
        figure: The figure, drawn in the common style; artists with a gid `series-N` get the class of that name.
        name: A word that is unique in the page; identifiers start with it.
        label: What the figure shows, for readers who do not see it.

    Returns:
        The element as safe markup: texts of the figure are escaped.
    """
    FigureCanvasSVG(figure)
    buffer = io.BytesIO()
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    with rc_context({"svg.hashsalt": "fedra", "svg.fonttype": "none", "path.simplify": True}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _clean(root, name)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label, "class": "figure"}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _clean(root: ElementTree.Element, name: str) -> None:
    """Simplify the tree in place, and make its identifiers unique in the page."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag == f"{SVG}metadata" or child.tag == f"{SVG}style":
                parent.remove(child)
    used = set(_references(root))
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        for key, value in DECLARATION.findall(element.attrib.pop("style", "")):
            if key == "font":
                element.attrib |= _font(value)
            elif key != "font-family":  # the page's
                element.set(key, value)
        if (link := element.attrib.pop(LINK, None)) is not None:
            element.set("href", f"#{name}-{link[1:]}" if link.startswith("#") else link)  # or an image's data
        for key, value in element.attrib.items():
            element.set(key, VARIABLES.get(value.lower(), REFERENCE.sub(rf"url(#{name}-\1)", value)))
        _shrink(element)
        _identify(element, name, used)


def _shrink(element: ElementTree.Element) -> None:
    """Shorten numbers to two digits, and drop rotations by zero and space between elements."""
    for key in ("d", "x", "y", "transform", "points"):
        if key in element.attrib:
            shorter = DECIMALS.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), element.attrib[key])
            element.set(key, " ".join(shorter.split()))
    if element.get("transform", "").startswith(("rotate(-0 ", "rotate(0 ")):
        del element.attrib["transform"]
    for part in ("text", "tail"):
        if not (getattr(element, part) or "").strip():
            setattr(element, part, None)


def _identify(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Keep an identifier only where something refers to it; a series becomes a class."""
    found = element.attrib.pop("id", "")
    if found.startswith(SERIES):
        element.set("class", found)
    elif found in used:
        element.set("id", f"{name}-{found}")


def _references(root: ElementTree.Element) -> Iterator[str]:
    for element in root.iter():
        for key, value in element.attrib.items():
            yield from REFERENCE.findall(value)
            if key == LINK:
                yield value.removeprefix("#")


def _font(value: str) -> dict[str, str]:
    """Split a CSS font into attributes; the family is the page's."""
    size = re.search(r"([\d.]+)px", value)
    weight = re.match(r"(bold|[1-9]00)\b", value)
    return ({"font-size": size[1]} if size else {}) | ({"font-weight": weight[1]} if weight else {})
