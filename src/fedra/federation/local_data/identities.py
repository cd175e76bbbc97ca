"""The numbers of a site's own people. The file only grows and never leaves the site; the coordinator learns how many.

A person keeps the number for good: numbering sorted folders anew would move every class vector when a person is added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedra.errors import DataError
from fedra.file_reading import LARGE, read_text_file
from fedra.writing import write_atomically


def open_identities(folder: Path) -> IdentityBook:
    """Read the numbers of a site's people, out of the site's folder."""
    return IdentityBook.open(folder / "state" / "identities.json")


@dataclass(frozen=True)
class IdentityBook:
    """The people of each client of a site, in the order of their numbers."""

    path: Path
    people: dict[str, list[str]]

    @classmethod
    def open(cls, path: Path) -> IdentityBook:
        """Read the file, or begin with none."""
        if not path.exists():
            return cls(path, {})
        try:
            people = json.loads(read_text_file(path, LARGE))
            valid = all(
                len(set(names)) == len(names) and all(isinstance(n, str) for n in names) for names in people.values()
            )
        except (ValueError, AttributeError, TypeError):
            valid = False
        if not valid:
            raise DataError(
                f"'{path}' must list every person once, got something else: restore it from a backup, because with "
                "other numbers the class vectors at the coordinator would belong to other people"
            )
        return cls(path, people)

    def number(self, client: str, names: Iterable[str]) -> dict[str, int]:
        """Return the numbers of a client's people; new ones follow the known ones, in the order of their names.

        The file is on the disk before this returns, so that no number is used that a crash could forget.
        """
        known = self.people.setdefault(client, [])
        new = sorted(set(names) - set(known))
        if new:
            known += new
            content = json.dumps(self.people, indent=1, ensure_ascii=False)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, content.encode(), private=True)
        return {name: index for index, name in enumerate(known)}

    def count(self, client: str) -> int:
        """Return how many people a client has, those included whose images are gone: all that leaves the site."""
        return len(self.people.get(client, ()))
