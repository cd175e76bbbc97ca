"""Put messages together out of Flower's objects, and send objects, with large arrays in memory once.

Flower's own way holds an array three times while it puts its chunks together, and all chunks of an upload at once. It
also believes an array's list of chunks, which may name one chunk any number of times.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

from flwr.app import Array

from fedra.federation.flower.flower_codec import from_records
from fedra.federation.flower.private_names import load
from fedra.federation.wire import Packet, WireError

PUSHES = 2
"""Objects of an answer that are on their way at the same time."""

Read = Callable[[str, bool], bytes]
"""Returns the content of an object; told whether it is read for the last time."""


def assemble(name: str, read: Read, most: int | None = None) -> Packet:
    """Put a message together; raises a `WireError` if it cannot be read, or has more than `most` bytes."""
    size = 0

    def count(one: str, last: bool) -> bytes:
        nonlocal size
        content = read(one, last)
        size += len(content)
        if most is not None and size > most:
            raise WireError(f"an answer must have at most {most:,} bytes, got more")
        return content

    contents: dict[str, bytes] = {}
    chunks: dict[str, list[str]] = {}
    try:
        _collect(name, count, contents, chunks)
        left = Counter(chunk for names in chunks.values() for chunk in names)
        arrays: dict[str, Any] = {}
        for array, names in chunks.items():
            data = BytesIO()
            for chunk in names:
                left[chunk] -= 1
                data.write(_body(count(chunk, not left[chunk])))
            arrays[array] = _array(contents.pop(array), data.getvalue())
        records = load("inflate_object_from_contents")(name, contents, objects=arrays).content
        packet = from_records(records)
        release(records)
        return packet
    except WireError:
        raise
    except Exception as error:  # objects from elsewhere may fail in any way
        raise WireError(f"the message cannot be read ({type(error).__name__})") from None


def _collect(name: str, read: Read, contents: dict[str, bytes], chunks: dict[str, list[str]]) -> None:
    """Read an object and what it consists of, except for the chunks of arrays, whose names are listed in order."""
    if name in contents:
        return
    contents[name] = read(name, True)
    kind, children, _ = load("get_object_head_values_from_object_content")(contents[name])
    if kind == Array.__qualname__:
        chunks[name] = [children[index] for index in json.loads(_body(contents[name]).tobytes())["arraychunk_ids"]]
        return
    for child in children:
        _collect(child, read, contents, chunks)


def _body(content: bytes) -> memoryview:
    return memoryview(content)[content.index(load("HEAD_BODY_DIVIDER")) + 1 :]


def _array(content: bytes, data: bytes) -> Any:
    about = json.loads(_body(content).tobytes())
    return Array(dtype=about["dtype"], shape=tuple(about["shape"]), stype=about["stype"], data=data)


def release(records: Any) -> None:
    """Take the bytes out of arrays: Flower's records refer to themselves, and would keep them for a while."""
    for record in records.array_records.values():
        for array in record.values():
            array.data = b""


def push_objects(objects: dict[str, Any], wanted: Collection[str], push: Callable[[str, bytes], None]) -> None:
    """Send the wanted objects, a few at a time; each is turned into bytes when its turn comes, and then forgotten."""
    names = [name for name in objects if name in wanted]
    with ThreadPoolExecutor(PUSHES) as pool:
        for _ in pool.map(lambda name: push(name, objects.pop(name).deflate()), names):
            pass  # an error ends the loop, and cancels what has not begun
