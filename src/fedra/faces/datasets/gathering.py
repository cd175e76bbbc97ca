"""Read the images of people from one or several folders: selection, faulty images, and cached pixels."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedra.core.deferred import DeferredInputs
from fedra.data.cache import cached
from fedra.data.image_sizes import LEFT_OUT, UNALIGNED, crop_note, image_sizes
from fedra.data.images import Listing, find_unusable_images, list_images, read_usable_images, shorten_list
from fedra.data.streaming import ImageFiles, choose_stream
from fedra.errors import ConfigError, DataError, nearest
from fedra.file_reading import LARGE, read_text_file

Faults = Literal["refuse", "skip"]
SharedNames = Literal["refuse", "join", "apart"]


@dataclass(frozen=True)
class GatheredPeople:
    """Images, uint8 (N, 3, size, size), decoded or deferred, their listing, and notes on what was skipped."""

    inputs: Tensor
    listing: Listing
    notes: Mapping[str, str]


def list_people(
    folders: Sequence[Path],
    *,
    level: bool = False,
    shared_names: SharedNames = "refuse",
    faults: Faults = "refuse",
) -> Listing:
    """List the images folder/identity/image of several folders, with the folders as groups.

    With `level`, list folder/group/identity/image with these groups. A name in two folders raises, or is one person
    ("join"), or two people called folder/name ("apart").
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(f"folders must be different, got {[str(folder) for folder in folders]}")
    paths: list[Path] = []
    people: list[str] = []
    groups: list[str] = []
    odd: list[str] = []
    home: dict[str, Path] = {}
    for folder in folders:
        found = list_images(folder, groups=level, skip_odd=faults == "skip")
        odd += found.odd
        for name in dict.fromkeys(found.classes):
            if home.setdefault(name, folder) != folder and shared_names == "refuse":
                raise DataError(
                    f"the identity '{name}' is in both {home[name]} and {folder}: set shared_names = 'join' if it is "
                    "the same person, or 'apart' if not"
                )
        paths += found.paths
        people += [f"{folder.name}/{name}" for name in found.classes] if shared_names == "apart" else found.classes
        groups += [f"{folder.name}/{group}" if group else folder.name for group in found.groups]
    return Listing(tuple(paths), tuple(people), tuple(groups), tuple(odd))


def select_people(listing: Listing, wanted: Iterable[str]) -> Listing:
    """Return the rows of a listing that show the given people."""
    names = set(wanted)
    return rows_of(listing, [row for row, person in enumerate(listing.classes) if person in names])


def first_of_each(listing: Listing, most: int | None) -> Listing:
    """Return at most the first `most` images of each person."""
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
    """Return the given rows of a listing."""
    columns = (listing.paths, listing.classes, listing.groups)
    paths, classes, groups = (tuple(column[row] for row in rows) for column in columns)
    return Listing(paths, classes, groups, listing.odd)  # type: ignore[arg-type]


def read_names(path: Path, known: Iterable[str]) -> set[str]:
    """Read a list of identities, one name per line (text after a tab is ignored); raise for unknown names."""
    try:
        lines = read_text_file(path, LARGE).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"the list of identities {path} cannot be read ({reason}): give a UTF-8 text file") from None
    names = {line.partition("\t")[0].strip() for line in lines} - {""}
    if unknown := sorted(names - set(known)):
        raise DataError(f"{path} lists the identity '{unknown[0]}', which has no folder: {nearest(unknown[0], known)}")
    return names


def with_enough_images(people: Iterable[str], least: int) -> set[str]:
    """Return the people with at least `least` images."""
    return {person for person, images in Counter(people).items() if images >= least}


def gather(
    root: Path, name: str, listing: Listing, size: int, faults: Faults, stream: bool | None = None
) -> GatheredPeople:
    """Read the pixels of a listing, from the cache if nothing has changed, or leave them in their files (`stream`).

    Faulty images are those that cannot be decoded, repeated copies of an image of the same person, and all copies of an
    image that two people share. They raise one error, or are skipped and listed in the notes.
    """
    streams, why = choose_stream(stream, len(listing.paths), size)

    def decode() -> dict[str, Tensor]:
        if streams:
            return examine(None, find_unusable_images(listing.paths, size=(size, size)))
        return examine(*read_usable_images(listing.paths, size=(size, size), square=True))

    def examine(inputs: Tensor | None, problems: dict[int, str]) -> dict[str, Tensor]:
        problems |= {row: reason for row, reason in _find_copies(listing).items() if row not in problems}
        faulty = [f"{listing.paths[row]} ({problems[row]})" for row in sorted(problems)]
        if faulty and faults == "refuse":
            raise DataError(
                f"{len(faulty)} images are unusable: repair or remove them, or set faults = 'skip' to skip them: "
                f"{shorten_list(faulty)}"
            )
        rows = torch.tensor([row for row in range(len(listing.paths)) if row not in problems], dtype=torch.int64)
        text = torch.tensor(list("\n".join(faulty).encode()), dtype=torch.uint8)
        sizes = image_sizes([listing.paths[row] for row in rows.tolist()])
        pixels = {} if inputs is None else {"inputs": inputs if not faulty else inputs[rows]}
        return pixels | {"rows": rows, "left_out": text, "sizes": sizes}

    people = hashlib.blake2b("\n".join(listing.classes).encode(), digest_size=16).hexdigest()
    fields = {"size": size, "faults": faults, "people": people, "sizes": True} | ({"stream": True} if streams else {})
    cache = cached(root, name, listing.paths, decode, fields)
    unread = bytes(cache["left_out"].tolist()).decode()
    skipped = "\n".join([*unread.splitlines(), *listing.odd])
    notes = why | ({LEFT_OUT: skipped} if skipped else {})
    if note := crop_note(cache["sizes"], (size, size)):
        notes[UNALIGNED] = note
    if not len(cache["rows"]):
        raise DataError(f"'{name}' has no usable image: {shorten_list(skipped.splitlines())}")
    used = listing if not unread else rows_of(listing, cache["rows"].tolist())
    return GatheredPeople(DeferredInputs(ImageFiles.of(used.paths, size)) if streams else cache["inputs"], used, notes)


def _find_copies(listing: Listing) -> dict[int, str]:
    """Find images with identical bytes and describe each; only files of equal size are compared."""
    sizes = [path.stat().st_size for path in listing.paths]
    files_of_size = Counter(sizes)
    same_bytes: dict[bytes, list[int]] = {}
    for row, path in enumerate(listing.paths):
        if files_of_size[sizes[row]] > 1:
            same_bytes.setdefault(hashlib.blake2b(path.read_bytes(), digest_size=16).digest(), []).append(row)
    found: dict[int, str] = {}
    for rows in same_bytes.values():
        if len({listing.classes[row] for row in rows}) > 1:
            for row in rows:
                other = next(one for one in rows if listing.classes[one] != listing.classes[row])
                found[row] = f"the same image as {listing.paths[other]} of another person"
        else:
            found |= dict.fromkeys(rows[1:], f"a copy of {listing.paths[rows[0]]}")
    return found
