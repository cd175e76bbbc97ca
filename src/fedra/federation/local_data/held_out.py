"""Which images a site keeps for its own test; kept in a file, so no trained image is ever tested on later."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedra.errors import DataError
from fedra.file_reading import LARGE, read_text_file
from fedra.writing import write_atomically


@dataclass(frozen=True)
class HeldOut:
    """The images that are tested on, and those that were trained on, by their names."""

    path: Path
    tested: set[str]
    trained: set[str]

    @classmethod
    def open(cls, path: Path) -> HeldOut:
        """Read the file, or begin with none."""
        if not path.exists():
            return cls(path, set(), set())
        try:
            table = json.loads(read_text_file(path, LARGE))
            return cls(path, set(table["tested"]), set(table["trained"]))
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"'{path}' must list tested and trained images, got something else: restore it from a backup, or "
                "remove it to choose anew (a test on trained images then shows too much)"
            ) from None

    def choose(self, labels: Mapping[str, object], share: float) -> set[str]:
        """Choose the held-out images: those of before, and of new images as many as the share of their class allows.

        Args:
            labels: The class of every image, by its name. Every class keeps at least one image to train on.
            share: Share of each class to hold out.

        Returns:
            The names of the held-out images.
        """
        groups: dict[object, list[str]] = defaultdict(list)
        for name, label in labels.items():
            groups[label].append(name)
        for members in groups.values():
            wanted = min(round(share * len(members)), len(members) - 1)
            held = sum(name in self.tested for name in members)
            new = [name for name in members if name not in self.tested and name not in self.trained]
            self.tested.update(sorted(new, key=_order)[: max(wanted - held, 0)])
        self.trained.update(labels.keys() - self.tested)
        content = json.dumps({"tested": sorted(self.tested), "trained": sorted(self.trained)}, indent=1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, content.encode(), private=True)
        return self.tested & labels.keys()


def _order(name: str) -> bytes:
    """Return an order that depends on nothing but the name."""
    return hashlib.sha256(name.encode()).digest()
