"""Images of people from one or several folders: who is taken, what is faulty, and the pixels, decoded once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedra.data.cache import cached
from fedra.data.image_sizes import UNALIGNED, cut_note, image_sizes
from fedra.data.images import Listing, list_images, shortened, usable_images
from fedra.errors import ConfigError, DataError, nearest

Faults = Literal["refuse", "skip"]
SharedNames = Literal["refuse", "join", "apart"]


@dataclass(frozen=True)
class GatheredPeople:
    """Decoded images uint8 (N, 3, size, size), what is known of each, and notes on what was left out."""

    inputs: Tensor
    listing: Listing
    notes: Mapping[str, str]


def list_people(folders: Sequence[Path], *, level: bool = False, shared_names: SharedNames = "refuse") -> Listing:
    """The images of folder/identity/image, of several folders as one listing whose groups are the folders.

    With `level`, folder/group/identity/image, and the groups are those. A name in two folders is refused, taken for
    one person ("join"), or for two people called folder/name ("apart").
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(f"a folder is named twice in {[str(folder) for folder in folders]}: name each once")
    paths: list[Path] = []
    people: list[str] = []
    groups: list[str] = []
    home: dict[str, Path] = {}
    for folder in folders:
        found = list_images(folder, groups=level)
        for name in dict.fromkeys(found.classes):
            if home.setdefault(name, folder) != folder and shared_names == "refuse":
                raise DataError(
                    f"the identity '{name}' is in {home[name]} and in {folder}: set shared_names = 'join' if it is one "
                    "person, or 'apart' if they are two"
                )
        paths += found.paths
        people += [f"{folder.name}/{name}" for name in found.classes] if shared_names == "apart" else found.classes
        groups += [f"{folder.name}/{group}" if group else folder.name for group in found.groups]
    return Listing(tuple(paths), tuple(people), tuple(groups))


def chosen(listing: Listing, wanted: Iterable[str]) -> Listing:
    """The part of a listing that shows the wanted people."""
    names = set(wanted)
    return rows_of(listing, [row for row, person in enumerate(listing.classes) if person in names])


def first_of_each(listing: Listing, most: int | None) -> Listing:
    """The first images of everybody, at most so many."""
    if most is None:
        return listing
    seen: Counter[str] = Counter()
    rows = []
    for row, person in enumerate(listing.classes):
        seen[person] += 1
        if seen[person] <= most:
            rows.append(row)
    return rows_of(listing, rows)


def rows_of(listing: Listing, rows: Sequence[int]) -> Listing:
    """Some rows of a listing."""
    columns = (listing.paths, listing.classes, listing.groups)
    return Listing(*(tuple(column[row] for row in rows) for column in columns))  # type: ignore[arg-type]


def read_names(path: Path, known: Iterable[str]) -> set[str]:
    """A list of identities, one name on each line (what follows a tab is passed over), all of them known."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"the list of identities {path} cannot be read ({reason}): give a text in UTF-8") from None
    names = {line.partition("\t")[0].strip() for line in lines} - {""}
    if strange := sorted(names - set(known)):
        raise DataError(f"{path} lists the identity '{strange[0]}', which has no folder: {nearest(strange[0], known)}")
    return names


def enough(people: Iterable[str], least: int) -> set[str]:
    """Who has `least` images or more."""
    return {person for person, images in Counter(people).items() if images >= least}


def gather(root: Path, name: str, listing: Listing, size: int, faults: Faults) -> GatheredPeople:
    """The pixels of a listing, from the cache where nothing has changed.

    Faulty are images that cannot be decoded, later copies of an image of the same person, and every copy of an image
    that two people share. They are refused together, or left out and listed in the notes.
    """

    def decode() -> dict[str, Tensor]:
        inputs, problems = usable_images(listing.paths, size=(size, size), square=True)
        problems |= {row: why for row, why in _copies(listing).items() if row not in problems}
        told = [f"{listing.paths[row]} ({problems[row]})" for row in sorted(problems)]
        if told and faults == "refuse":
            raise DataError(
                f"{len(told)} images cannot be used, repair or remove them or set faults = 'skip' to leave them out: "
                f"{shortened(told)}"
            )
        rows = torch.tensor([row for row in range(len(inputs)) if row not in problems], dtype=torch.int64)
        text = torch.tensor(list("\n".join(told).encode()), dtype=torch.uint8)
        sizes = image_sizes([listing.paths[row] for row in rows.tolist()])
        return {"inputs": inputs if not told else inputs[rows], "rows": rows, "left_out": text, "sizes": sizes}

    people = hashlib.blake2b("\n".join(listing.classes).encode(), digest_size=16).hexdigest()
    fields = {"size": size, "faults": faults, "people": people, "sizes": True}
    kept = cached(root, name, listing.paths, decode, fields)
    told = bytes(kept["left_out"].tolist()).decode()
    notes = {"left out": told} if told else {}
    if note := cut_note(kept["sizes"], (size, size)):
        notes[UNALIGNED] = note
    if not len(kept["rows"]):
        raise DataError(f"no image of '{name}' can be used: {shortened(told.splitlines())}")
    return GatheredPeople(kept["inputs"], listing if not told else rows_of(listing, kept["rows"].tolist()), notes)


def _copies(listing: Listing) -> dict[int, str]:
    """Images with the same bytes, and why each is one too many; only files of one size are compared."""
    sizes = [path.stat().st_size for path in listing.paths]
    often = Counter(sizes)
    alike: dict[bytes, list[int]] = {}
    for row, path in enumerate(listing.paths):
        if often[sizes[row]] > 1:
            alike.setdefault(hashlib.blake2b(path.read_bytes(), digest_size=16).digest(), []).append(row)
    found: dict[int, str] = {}
    for rows in alike.values():
        if len({listing.classes[row] for row in rows}) > 1:
            for row in rows:
                other = next(one for one in rows if listing.classes[one] != listing.classes[row])
                found[row] = f"the same image as {listing.paths[other]} of another person"
        else:
            found |= dict.fromkeys(rows[1:], f"a copy of {listing.paths[rows[0]]}")
    return found
