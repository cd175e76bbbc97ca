"""Mutations of files: of their bytes, and of the tree that their format makes of them.

Every choice is drawn from the generator that is passed in: hypothesis shrinks it, atheris seeds it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence

from fuzz_formats import Format, Tree

LARGEST = 2**16
"""Bytes of the largest input."""
MOST_STEPS = 4
INTEGERS = (0, 1, -1, 2, 3, 7, 255, 256, -128, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63))
NUMBERS: tuple[Tree, ...] = (*INTEGERS, 10**30, 10**400, 0.5, -0.0, 1e-320, 1e38, 1e300, float("inf"), float("nan"))
TEXTS = (
    "",
    " ",
    "0",
    "a",
    "..",
    "../x",
    "/etc/passwd",
    "os:abort",
    "a:b",
    "-",
    "nan",
    "\x00",
    "\ud800",
    "é",
    "\x1b[2J",
)
LONG = ("A" * 5000, "9" * 5000, "[" * 3000, "../" * 500 + "x", "a." * 1500)
OTHERS: tuple[Tree, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, {"name": {}}, [0] * 50)


def mutate(data: bytes, others: Sequence[bytes], form: Format, chance: random.Random) -> bytes:
    """Return a mutation of `data`: of its tree two times out of three, otherwise of its bytes."""
    if chance.random() < 0.67:
        try:
            tree = mutate_tree(form.parse(data), chance)
            return form.build(tree)[:LARGEST]
        except Exception:  # the tree cannot be written in the format, or the file was no longer of the format
            pass
    return mutate_bytes(data, others, chance)[:LARGEST]


def mutate_bytes(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return the bytes after a few changes of bits, numbers, lengths and order."""
    for _ in range(chance.randint(1, MOST_STEPS)):
        place = chance.randint(0, len(data))
        end = min(len(data), place + chance.choice((1, 1, 2, 4, 8, 64)))
        match chance.randint(0, 7):
            case 0 if data:
                place = min(place, len(data) - 1)
                data = data[:place] + bytes((data[place] ^ 1 << chance.randint(0, 7),)) + data[place + 1 :]
            case 1:
                data = data[:place] + bytes(chance.choice((0, 255)) for _ in range(end - place)) + data[end:]
            case 2:
                number, size = chance.choice(INTEGERS), chance.choice((1, 2, 4, 8))
                order = chance.choice(("little", "big"))
                data = data[:place] + (number % 256**size).to_bytes(size, order) + data[place + size :]  # type: ignore[arg-type]
            case 3:
                data = data[:place] + str(chance.choice(INTEGERS)).encode() + data[end:]
            case 4:
                data = data[:place]
            case 5:
                data = data[:place] + data[place:end] * chance.choice((2, 3, 50)) + data[end:]
            case 6:
                data = data[:place] + data[end:]
            case _:
                other = chance.choice(others)
                cut = chance.randint(0, len(other))
                data = data[:place] + other[cut : cut + 64] + data[end:]
    return data


def mutate_tree(tree: Tree, chance: random.Random) -> Tree:
    """Return a copy of a tree after a few changes of values, names, order and places."""
    tree = {"": copy.deepcopy(tree)}
    for _ in range(chance.randint(1, MOST_STEPS)):
        nodes = list(_places(tree))
        holder, key = chance.choice(nodes) if chance.random() < 0.5 else _walk(tree, chance)
        action = chance.randint(0, 5)
        if action == 0 and isinstance(holder, dict) and holder is not tree:
            holder[chance.choice((*TEXTS, "extra"))] = holder.pop(key)
        elif action == 1 and holder is not tree:
            del holder[key]
        elif action == 2 and isinstance(holder, list) and len(holder) < 100:
            holder.insert(key, copy.deepcopy(holder[key]))
        elif action == 3:
            other, place = chance.choice(nodes)
            holder[key] = copy.deepcopy(other[place])
        else:
            holder[key] = _mutate_value(holder[key], chance)
    return tree[""]


def _places(node: Tree) -> Iterator[tuple[Tree, Tree]]:
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
    for key, value in items:
        yield node, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _walk(node: Tree, chance: random.Random) -> tuple[Tree, Tree]:
    """Go down from the root, so that the few nodes near it are met as often as the many below."""
    key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
    deeper = isinstance(node[key], dict | list) and len(node[key]) > 0
    return _walk(node[key], chance) if deeper and chance.random() < 0.7 else (node, key)


def _mutate_value(value: Tree, chance: random.Random) -> Tree:
    """Return another value: usually of the same type, sometimes of another."""
    if isinstance(value, bytes):
        return mutate_bytes(value, (value,), chance)
    if chance.random() < 0.3:
        return copy.deepcopy(chance.choice((*NUMBERS, *TEXTS, *LONG, *OTHERS)))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return chance.choice((*NUMBERS, value + 1, value - 1, -value, value * 1000))
    if isinstance(value, str):
        mixed = mutate_bytes(value.encode(errors="replace"), (value.encode(errors="replace"),), chance)
        return chance.choice((*TEXTS, *LONG, mixed.decode(errors="replace"), value * 2))
    return copy.deepcopy(chance.choice(OTHERS))
