"""What a hostile or broken site may send: refused with a sentence, nothing lost, and the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rehearsing import Rehearsed

import tiny
from fedra.core.tree import Tree
from fedra.federation import wire
from fedra.federation.link import Answer
from fedra.federation.wire import Packet

pytestmark = pytest.mark.usefixtures("without_curves")
Change = Callable[[dict[str, Any], Tree], None]


def each(change: Callable[[Tree], None]) -> Change:
    return lambda words, tensors: [change(tensors[client]) for client in tensors] and None


def word(key: str, value: Any) -> Change:
    return lambda words, tensors: [one.update({key: value}) for one in words["trained"]] and None


def first(upload: Tree) -> str:
    return next(iter(upload["delta"]))


def to_nan(upload: Tree) -> None:
    upload["delta"][first(upload)].view(-1)[0] = torch.nan


def to_half(upload: Tree) -> None:
    upload["delta"][first(upload)] = upload["delta"][first(upload)].half()


def to_shape(upload: Tree) -> None:
    upload["delta"][first(upload)] = torch.zeros(3)


def smuggle(upload: Tree) -> None:
    upload.setdefault("extras", {})["sharing"] = {"classes": torch.arange(4)}


def grow(upload: Tree) -> None:
    upload["delta"] = {name: value * 1e6 for name, value in upload["delta"].items()}


CASES: dict[str, tuple[Change, str]] = {
    "a number that is not finite": (each(to_nan), "its update was not finite"),
    "another type": (each(to_half), "as float16 instead of float32"),
    "another shape": (each(to_shape), "with shape (3,) instead of"),
    "a missing tensor": (each(lambda upload: upload["delta"].pop(first(upload))), "did not send the parameter"),
    "an unknown tensor": (each(lambda u: u["delta"].update(images=torch.zeros(9))), "the unknown parameter 'images'"),
    "a smuggled tensor": (each(smuggle), "sent the unknown extra 'sharing|classes'"),
    "another group": (each(lambda u: u.update(secret=torch.ones(2))), "tensors that the plan does not declare"),
    "too many examples": (word("examples", 10**9), "sent 1000000000 examples instead of"),
    "negative examples": (word("examples", -320), "sent -320 examples instead of"),
    "no steps": (word("steps", 0), "sent 0 local steps"),
    "endless steps": (word("effective_steps", 1e400), "effectively inf"),
    "a strange metric": (word("metrics", {"\x1b[2J": 1.0}), "is wrong at 'trained.0"),
    "an unknown word": (word("shell", "rm"), "is wrong at 'trained.0"),
    "another client": (word("client", 0), "answered for other clients"),
    "a long update": (each(grow), "times as long as the round's median (bound 10)"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_upload_is_refused_and_the_run_goes_on(case: str, tmp_path: Path) -> None:
    change, told = CASES[case]
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=2), rules={"bound": 10.0})

    def answer(packet: Packet) -> Answer:
        found = rehearsed.nodes["site-3"].answer(packet)
        if packet.kind != "train" or '"round":0' not in packet.words:
            return found
        words, tensors = json.loads(found.words), found.tree("own")
        change(words, tensors)
        text = json.dumps(words).replace("Infinity", "1e999")
        return Packet("train", text, {"own": wire.encode_tree(tensors)})

    rehearsed.link.sites["site-3"] = answer
    rehearsed.run()
    lines = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if line["site"] == "site-3"]
    assert told in lines[0]["dropped"]
    assert "dropped" not in lines[1]
    assert "\x1b" not in (tmp_path / "run" / "clients.jsonl").read_text()


@pytest.mark.parametrize("blob", [b"", b"\x80\x04pickled", b"\xff" * 100, b'\x08\0\0\0\0\0\0\0{"a":1}'])
def test_bytes_that_are_no_tensors_are_refused(blob: bytes, tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1))

    def answer(packet: Packet) -> Answer:
        found = rehearsed.nodes["site-3"].answer(packet)
        return Packet("train", found.words, {"own": blob}) if packet.kind == "train" else found

    rehearsed.link.sites["site-3"] = answer
    rehearsed.run()
    lines = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if line["site"] == "site-3"]
    assert "dropped" in lines[0]


def test_answers_that_the_link_refuses_pause_a_site_like_others(tmp_path: Path) -> None:
    """A round does not wait for its deadline for a site that sends too much."""
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=4))

    def answer(packet: Packet) -> Answer:
        refused = "refused: an answer must have at most 17 objects, got 165"
        return refused if packet.kind == "train" else rehearsed.nodes["site-3"].answer(packet)

    rehearsed.link.sites["site-3"] = answer
    rehearsed.run()
    lines = [line for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if line["site"] == "site-3"]
    reasons = [line["dropped"] for line in lines]
    assert all("at most 17 objects, got 165" in reason for reason in reasons)
    assert reasons[-1].startswith("paused: 3 refused answers in a row")


def test_a_site_refuses_a_model_that_does_not_fit_its_start(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1))
    rehearsed.run()
    site, question, _ = next(one for one in rehearsed.link.passed if one[1].kind == "train")
    shared = question.tree("shared")
    shared["params"]["intruder"] = torch.ones(2)
    asked = Packet("train", question.words, {**question.blobs, "shared": wire.encode_tree(shared)})
    assert rehearsed.nodes[site].answer(asked).read(wire.Refusal).reason.startswith("the received parameter 'intruder'")


def test_an_error_at_a_site_leaves_without_its_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1))
    rehearsed.run()
    site, question, _ = next(one for one in rehearsed.link.passed if one[1].kind == "evaluate")

    def fail(*_: Any, **__: Any) -> None:
        from fedra.errors import DataError

        raise DataError("the photo of Ada Lovelace in '/data/ada.jpg' is damaged")

    monkeypatch.setattr("fedra.federation.site_node.evaluate_clients", fail)
    answer = rehearsed.nodes[site].answer(question)
    assert answer.read(wire.Refusal).reason == "it failed at the site, whose terminal says why"
    assert any("Ada" in line for line in rehearsed.told)


def test_a_full_disk_at_a_site_is_an_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(algorithm={"name": "scaffold"}, rounds=1))
    full = iter([True])

    def store(*words: Any) -> None:
        if next(full, False):
            raise OSError(28, "No space left on device")
        return real(*words)

    from fedra.federation.site_memory import SiteMemory

    real = SiteMemory.store
    monkeypatch.setattr(SiteMemory, "store", store)
    rehearsed.run()
    dropped = [line["dropped"] for line in tiny.lines(tmp_path / "run" / "clients.jsonl") if "dropped" in line]
    assert set(dropped) == {"its disk is full"}
