"""Targets: the files that coordinators and sites exchange and keep, the messages between them, secure sums."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fuzz_formats import CHAIN, JSON, PACKET, TENSORS, TOML, Format
from fuzz_target import Target
from rehearsing import Rehearsed
from secure_rounds import Round, random_vectors

import tiny
from fedra.callbacks.callback import Callback
from fedra.callbacks.curves import Curves
from fedra.core import tree
from fedra.federation import wire
from fedra.federation.admissions import admitted_sites
from fedra.federation.audit_log import AuditLog, format_log, read_log, verify_log
from fedra.federation.declared_uploads import demands_of
from fedra.federation.federation_plan import read_plan
from fedra.federation.folder_side import FolderSide
from fedra.federation.invitation import SiteRequest, read_invitation, read_request
from fedra.federation.keys import read_certificate, site_files
from fedra.federation.local_data.held_out import HeldOut
from fedra.federation.local_data.identities import IdentityBook
from fedra.federation.packet_files import read_packet, write_packet
from fedra.federation.roster import read_roster
from fedra.federation.site_config import read_site
from fedra.federation.site_folder import read_approvals
from fedra.federation.site_node import SiteNode
from fedra.federation.wire import Packet
from fedra.privacy.secure.secure_messages import SecureRoundError

SITE = "site-1"
TABLE = tiny.table(rounds=1, algorithm={"name": "scaffold"})


@contextmanager
def without_drawing() -> Iterator[None]:
    """Drawing is most of a tiny run's time."""
    drawing, Curves.on_run_end = Curves.on_run_end, Callback.on_run_end  # type: ignore[method-assign]
    try:
        yield
    finally:
        Curves.on_run_end = drawing  # type: ignore[method-assign]


@cache
def federation() -> Mapping[str, bytes]:
    """The folders of a coordinator and its sites after a round, and the messages that passed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with without_drawing():
            rehearsed = Rehearsed(folder, TABLE, sites=2)
            rehearsed.run()
        for site, question, answer in rehearsed.link.passed:
            if site == SITE and isinstance(answer, Packet):
                write_packet(folder / f"{question.kind}.ask", question)
                write_packet(folder / f"{question.kind}.answer", answer)
        (folder / "held.json").write_text(json.dumps({"tested": ["a.png"], "trained": ["b.png", "c.png"]}))
        (folder / "people.json").write_text(json.dumps({"client": ["Ada", "Grace"]}))
        (folder / "state").mkdir()
        (folder / "state" / "approved.json").write_text(json.dumps({"0" * 64: {"time": "2026", "by": "me"}}))
        request = SiteRequest(SITE, read_certificate(site_files(folder / SITE).certificate))
        (folder / f"{SITE}.site").write_text(request.to_toml())
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def only(*names: str) -> Callable[[], Mapping[str, bytes]]:
    """Of the federation's files these alone, because making a folder takes time."""
    return lambda: {name: content for name, content in federation().items() if name.startswith(names)}


def open_invitation(folder: Path) -> None:
    """What a site learns from an invitation before it agrees to anything."""
    invitation = read_invitation(folder / "coordinator" / "test.invite")
    invitation.to_toml()
    demands_of(invitation.plan)
    str((invitation.fingerprint, invitation.plan.short_digest))


def open_plan(folder: Path) -> None:
    plan = read_plan(folder / "coordinator")
    plan.to_toml()
    str(plan.digest)


def open_roster(folder: Path) -> None:
    roster = read_roster(folder / "coordinator" / "roster.json")
    roster.owners()
    for site in roster.sites():
        roster.numbers(site)


def open_admissions(folder: Path) -> None:
    admitted_sites(folder / "coordinator")


def open_log(folder: Path) -> None:
    """Read a log of a stranger, and continue a log of one's own."""
    path = folder / SITE / "log.jsonl"
    list(format_log(read_log(path), tensors=True))
    verify_log(path)
    AuditLog(path).record("fuzzed")


def take_answer(folder: Path) -> None:
    """What a coordinator does with an answer from its disk."""
    for kind in ("describe", "start", "train", "evaluate"):
        answer = read_packet(folder / "train.answer")
        if answer is None:
            return
        str((answer.digest, answer.nbytes))
        try:
            wire.read_answer(answer, kind)
        except wire.WireError:
            continue
        answer.tree("own")


def ask_site(folder: Path) -> None:
    """A site answers whatever it is asked; its folder is as it was before each question."""
    ask = read_packet(folder / "ask")
    if ask is None:
        return
    with tempfile.TemporaryDirectory(dir=folder) as name:
        shutil.copytree(folder / SITE, Path(name) / SITE)
        answer = SiteNode(Path(name) / SITE, FolderSide(Path(name) / SITE), "sequential").answer(ask)
        assert isinstance(answer, Packet)


_REHEARSED: dict[Path, Rehearsed] = {}


def combine(folder: Path) -> None:
    """A round of two sites, one of which sends what the input says: the run ends, with or without its upload."""
    answer = read_packet(folder / "train.answer")
    if answer is None:
        return
    if folder not in _REHEARSED:
        _REHEARSED.clear()
        _REHEARSED[folder] = Rehearsed(folder / "live", TABLE, sites=2)
    rehearsed = _REHEARSED[folder]
    shutil.rmtree(folder / "live" / "run", ignore_errors=True)
    shutil.rmtree(folder / "live" / "coordinator" / "inbox", ignore_errors=True)
    honest = rehearsed.answering(SITE)
    rehearsed.link.sites[SITE] = lambda ask: answer if ask.kind == "train" else honest(ask)
    with without_drawing():
        rehearsed.run()


PATCH = {"stage": 1, "to": "server", "member": 2, "field": "mask", "owner": 1, "cut": 0, "bytes": "00ff", "number": 3}


def sum_securely(folder: Path) -> None:
    """A secure round in which one message is patched: refused, or the sum is right for those who answered."""
    try:
        patch = json.loads((folder / "patch.json").read_bytes())
    except ValueError:
        return
    if not isinstance(patch, dict) or not all(type(patch.get(key)) is type(PATCH[key]) for key in PATCH):
        return
    secure = _PatchedRound(patch)
    try:
        answered, total = secure.run()
    except SecureRoundError:
        return
    if not secure.patched:
        expected = sum(secure.vectors[member].astype("uint64") for member in answered) % 2**32
        assert (total == expected).all(), "a sum that is wrong"


class _PatchedRound(Round):
    """A round whose messages of one stage are changed on their way."""

    def __init__(self, patch: Mapping[str, Any]) -> None:
        self.patch, self.patched = patch, False
        super().__init__(random_vectors([1, 2, 3, 4], length=4), drops={4: 3})

    def _bytes(self, value: bytes) -> bytes:
        try:
            added = bytes.fromhex(self.patch["bytes"])
        except ValueError:
            added = b""
        return (value[: self.patch["cut"]] if self.patch["cut"] else value) + added

    def _change(self, stage: int, to: str, messages: dict[int, Any]) -> dict[int, Any]:
        """Replace a field of one member's message: bytes by other bytes, mappings in one of their entries."""
        member, field = self.patch["member"], self.patch["field"]
        message = messages.get(member)
        if (self.patch["stage"], self.patch["to"]) != (stage, to) or not hasattr(message, field):
            return messages
        self.patched = True
        value = getattr(message, field)
        if isinstance(value, bytes):
            value = self._bytes(value)
        elif isinstance(value, tuple):
            value = (*value[: self.patch["cut"]], self.patch["number"])
        elif isinstance(value, Mapping):
            owner = self.patch["owner"]
            held = value.get(owner, next(iter(value.values()), b""))
            value = {**value, owner: self._bytes(held) if isinstance(held, bytes) else held}
        return {**messages, member: replace(message, **{field: value})}

    def join(self) -> Any:
        relay = self.server.relay_keys
        self.server.relay_keys = lambda replies: relay(self._change(1, "server", dict(replies)))  # type: ignore[method-assign]
        return self._change(2, "client", super().join())

    def share(self, messages: Any) -> Any:
        relay = self.server.relay_shares
        self.server.relay_shares = lambda replies: relay(self._change(2, "server", dict(replies)))  # type: ignore[method-assign]
        return self._change(3, "client", super().share(messages))

    def mask(self, messages: Any) -> Any:
        roll = super().mask(messages)
        return self._change(4, "client", {self.patch["member"]: roll})[self.patch["member"]]

    def sign_roll(self, roll: Any) -> Any:
        signed = super().sign_roll(roll)
        return self._change(5, "client", {self.patch["member"]: signed})[self.patch["member"]]

    def reveal(self, message: Any) -> None:
        add = self.server.add_revealed
        self.server.add_revealed = lambda member, reply: add(  # type: ignore[method-assign]
            member, self._change(5, "server", {member: reply})[member]
        )
        super().reveal(message)


def patches() -> list[bytes]:
    """A patch for each field of each message."""
    fields = {
        (1, "server"): ("mask", "share", "signature"),
        (2, "client"): ("keys",),
        (2, "server"): ("boxes",),
        (3, "client"): ("boxes",),
        (4, "client"): ("answered", "dropped"),
        (5, "client"): ("signatures", "roll"),
        (5, "server"): ("seeds", "mask_keys"),
    }
    return [
        JSON.build({**PATCH, "stage": stage, "to": to, "field": field})
        for (stage, to), names in fields.items()
        for field in names
    ]


def asks() -> list[bytes]:
    """Every kind of question."""
    return [federation()[f"{kind}.ask"] for kind in ("describe", "start", "train", "evaluate")]


def _site_folder() -> Mapping[str, bytes]:
    return {**only(f"{SITE}/")(), "ask": federation()["train.ask"]}


def _decode_tree(folder: Path) -> None:
    for value in tree.flatten(wire.decode_tree((folder / "blob").read_bytes())).values():
        assert isinstance(value, torch.Tensor)


def targets() -> list[Target]:
    """The targets of this file."""
    rows: list[tuple[str, str, Format, tuple[str, ...], Callable[[Path], object]]] = [
        ("invitation", "coordinator/test.invite", TOML, ("coordinator/test.invite",), open_invitation),
        ("plan", "coordinator/federation.toml", TOML, ("coordinator/federation.toml",), open_plan),
        ("roster", "coordinator/roster.json", JSON, ("coordinator/roster.json",), open_roster),
        ("site-request", f"{SITE}.site", TOML, (f"{SITE}.site",), lambda folder: read_request(folder / f"{SITE}.site")),
        ("site-config", f"{SITE}/site.toml", TOML, (f"{SITE}/site.toml",), lambda folder: read_site(folder / SITE)),
        ("audit-log", f"{SITE}/log.jsonl", CHAIN, (f"{SITE}/log.jsonl",), open_log),
        ("held-out", "held.json", JSON, ("held.json",), lambda folder: HeldOut.open(folder / "held.json")),
        ("identities", "people.json", JSON, ("people.json",), lambda folder: IdentityBook.open(folder / "people.json")),
        ("approvals", "state/approved.json", JSON, ("state/",), read_approvals),
        ("answer", "train.answer", PACKET, ("train.answer",), take_answer),
    ]
    found = [Target(name, file, form, only(*wanted), read) for name, file, form, wanted, read in rows]
    blob = cache(lambda: {"blob": wire.encode_tree({"0": {"delta": {"w": torch.ones(2), "b": torch.ones(1)}}})})
    return [
        *found,
        Target("upload", "train.answer", PACKET, only("train.answer"), combine, slow=True),
        Target("question", "ask", PACKET, _site_folder, ask_site, asks),
        Target("wire-tensors", "blob", TENSORS, blob, _decode_tree),
        Target("secure-sum", "patch.json", JSON, lambda: {"patch.json": JSON.build(PATCH)}, sum_securely, patches),
    ]
