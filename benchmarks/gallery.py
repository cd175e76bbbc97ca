"""What an exact search costs: the five nearest of a gallery against the bare matrix product of its scores.

Templates of 512 numbers, 100,000 and a million (2 GB); one photograph, and a hundred at once. All cores work.
"""

from __future__ import annotations

import torch
from measure import Row, cores, in_turns, main, parser

from fedra.faces.recognition.gallery_file import GalleryContent, GalleryMetadata

WIDTH, TOP = 512, 5
TARGET = 2.0


def _gallery(people: int, width: int) -> GalleryContent:
    draw = torch.Generator().manual_seed(0)
    names = tuple(f"person {number}" for number in range(people))
    about = GalleryMetadata(fingerprint="none")
    templates = torch.randn(people, width, generator=draw)
    return GalleryContent(about, names, templates, torch.ones(people, dtype=torch.int64))


def _rows(people: int, width: int, queries: int, repeats: int) -> list[Row]:
    gallery = _gallery(people, width)
    asked = torch.randn(queries, width, generator=torch.Generator().manual_seed(1))
    rivals = {
        "search": lambda: gallery.search(asked, TOP),
        "product": lambda: asked @ gallery.templates.T,
    }
    timings = in_turns(rivals, repeats)
    what = f"{queries} of {people:,} people against the bare product, time"
    return [Row(what, timings.ratio("search", "product"), target=TARGET, note=timings.note("search", "product"))]


def measure(quick: bool) -> list[Row]:
    """The ratio for two sizes of galleries and two numbers of photographs."""
    torch.set_num_threads(cores())
    sizes, width, repeats = ((50, 200), 16, 2) if quick else ((100_000, 1_000_000), WIDTH, 5)
    return [row for people in sizes for queries in (1, 100) for row in _rows(people, width, queries, repeats)]


if __name__ == "__main__":
    main(measure, parser(__doc__))
