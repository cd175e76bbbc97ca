"""Targets: messages of a federation in which one is changed on its way, of plain rounds and of secure ones.

Secure rounds make new keys every time, so an input does not hold a message: it says which message is changed, and how.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_formats import JSON, build_tensors, parse_tensors
from fuzz_mutation import mutate_tree
from fuzz_target import Target
from rehearsing import Rehearsed
from targets_of_federation import SITE, without_drawing

import tiny
from fedra.federation.link import Answer
from fedra.federation.wire import Packet

PLAIN = tiny.table(rounds=1, algorithm={"name": "scaffold"})
SECURE = tiny.table(rounds=1, secure={"aggregation": "masks", "bound": 4.0, "threshold": 0.51})
RULES = {"evaluation": "none", "least": 3, "deadline": 20}
WAYS = ("site", "coordinator")
KINDS = {"plain": ("train", "evaluate"), "secure": ("keys", "shares", "masked", "roll", "unmask")}
"""Messages of rounds; a coordinator waits without end for sites that it cannot start with."""


def change_packet(packet: Packet, seed: int) -> Packet:
    """Change a message by a key: its kind, its words, its tensors."""
    tree: dict[str, Any] = {"kind": packet.kind, "words": json.loads(packet.words)}
    tree["blobs"] = {name: _parse(blob) for name, blob in packet.blobs.items()}
    changed = mutate_tree(tree, random.Random(seed))
    try:
        blobs = {
            name: blob if isinstance(blob, bytes) else build_tensors(blob) for name, blob in changed["blobs"].items()
        }
        return Packet(str(changed["kind"]), json.dumps(changed["words"]), blobs)
    except Exception:  # it cannot be written as a message
        return packet


def _parse(blob: bytes) -> Any:
    try:
        return parse_tensors(blob)
    except (ValueError, KeyError):
        return blob


def _rehearse(name: str, table: dict[str, Any], sites: int, rules: dict[str, Any]) -> Callable[[Path], None]:
    made: dict[Path, Rehearsed] = {}

    def read(folder: Path) -> None:
        try:
            wanted = json.loads((folder / "change.json").read_bytes())
            kind, to, seed = wanted["kind"], wanted["to"], wanted["seed"]
        except (ValueError, KeyError, TypeError):
            return
        if kind not in KINDS[name] or to not in WAYS or not isinstance(seed, int):
            return
        if folder not in made:
            made.clear()
            made[folder] = Rehearsed(folder / "live", table, sites=sites, rules=rules)
            shutil.copytree(folder / "live", folder / "new")
        _run_changed(made[folder], folder, kind, to, seed)

    return read


def _run_changed(rehearsed: Rehearsed, folder: Path, kind: str, to: str, seed: int) -> None:
    """Run a federation anew, in which the first message of a kind to or from a site is changed."""
    shutil.rmtree(folder / "live")
    shutil.copytree(folder / "new", folder / "live")
    rehearsed.nodes = {site: rehearsed.node(site) for site in rehearsed.places}
    left_to_change = [kind]

    def answer(ask: Packet) -> Answer:
        if ask.kind not in left_to_change:
            return rehearsed.nodes[SITE].answer(ask)
        left_to_change.clear()
        if to == "site":
            return rehearsed.nodes[SITE].answer(change_packet(ask, seed))
        found = rehearsed.nodes[SITE].answer(ask)
        return change_packet(found, seed) if isinstance(found, Packet) else found

    rehearsed.link.sites = {site: rehearsed.answering(site) for site in rehearsed.places} | {SITE: answer}
    with without_drawing():
        rehearsed.run()


def targets() -> list[Target]:
    """The targets of this file."""
    found = []
    for name, table, sites, rules in (("plain", PLAIN, 2, {}), ("secure", SECURE, 4, RULES)):
        seeds = [JSON.build({"kind": kind, "to": to, "seed": 1}) for kind in KINDS[name] for to in WAYS]
        files = cache(lambda first=seeds[0]: {"change.json": first})
        more = cache(lambda rest=tuple(seeds[1:]): rest)
        found.append(
            Target(f"{name}-message", "change.json", JSON, files, _rehearse(name, table, sites, rules), more, slow=True)
        )
    return found
