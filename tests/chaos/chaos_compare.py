"""Compare the folder of a killed and repeated command with those of two undisturbed ones: same files, same bits.

What differs between the two undisturbed ones (times of day) may differ, and seconds, which can be equal by chance.
Nothing else may.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOREIGN = "tmp/.ses"
"""What onnxruntime writes into the folder of temporary files."""
SECONDS = "seconds"
"""The key of how long something took."""
Content = Mapping[str, bytes]


def read_folder(folder: Path) -> dict[str, bytes]:
    """All files under a folder, links and empty folders included."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == FOREIGN:
            continue
        if path.is_symlink():
            found[name] = b"a link"
        elif path.is_file():
            found[name] = path.read_bytes().replace(bytes(folder), b"FOLDER")
        elif not any(path.iterdir()):
            found[name] = b"a folder"
    return found


def differences(found: Content, first: Content, second: Content) -> list[str]:
    """What is different in `found` that is the same in both undisturbed folders."""
    problems = [f"{name} is left over" for name in found.keys() - first.keys()]
    problems += [f"{name} is missing" for name in first.keys() - found.keys()]
    for name in sorted(found.keys() & first.keys()):
        if name.endswith(".fedra"):  # the order in which files were claimed
            same = sorted(found[name].splitlines()) == sorted(first[name].splitlines())
        else:
            same = found[name] == first[name] or _same_but_for_times(found[name], first[name], second[name])
        if not same:
            problems.append(f"{name} differs ({_digest(found[name])} instead of {_digest(first[name])})")
    return problems


def _same_but_for_times(found: bytes, first: bytes, second: bytes) -> bool:
    try:
        one, two, three = (_entries(data) for data in (found, first, second))
    except ValueError:
        return False
    if one.keys() != two.keys():
        return False
    varying = {SECONDS} | {_key(place) for place in two if two[place] != three.get(place)}
    return all(one[place] == two[place] or _key(place) in varying for place in two)


def _entries(data: bytes) -> dict[tuple[Any, ...], Any]:
    """The values in a JSON file or the lines of one, by their places."""
    try:
        tree = json.loads(data)
    except ValueError:
        tree = [json.loads(line) for line in data.splitlines()]
    return dict(_walk(tree, ()))


def _walk(node: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if items is None:
        yield place, node
        return
    for key, value in items:
        yield from _walk(value, (*place, key))


def _key(place: tuple[Any, ...]) -> Any:
    return next((step for step in reversed(place) if isinstance(step, str)), None)


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:8]}"
