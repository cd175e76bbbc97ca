"""Messages and files of a federation that say something else than they should: a sentence, or asked again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from rehearsing import Rehearsed

import tiny
from fedra.errors import RunError
from fedra.federation.packet_files import read_packet, write_packet
from fedra.federation.roster import read_roster
from fedra.federation.wire import Packet, Refusal


@pytest.mark.parametrize("words", ["3", "[]", "null", "{", '"a"', "[" * 5000, "9" * 5000], ids=lambda text: text[:5])
def test_a_question_whose_words_are_no_table_is_refused(words: str, tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, tiny.table(rounds=1))
    answer = rehearsed.nodes["site-1"].answer(Packet("train", words))
    assert "is wrong at" in answer.read(Refusal).reason


def test_the_transient_word_alone_is_not_part_of_a_messages_identity() -> None:
    one, other = (Packet("train", json.dumps({"round": 1, "durable": number})) for number in (1, 2))
    assert one.digest == other.digest
    assert Packet("train", '"durable"').digest != Packet("train", "[]").digest
    assert Packet("train", "{}", {"\ud800": b"x"}).digest != Packet("train", "{}").digest


@pytest.mark.parametrize(
    "change",
    [
        {"kind": 7},
        {"words": 10**400},
        {"words": -1},
        {"words": True},
        {"blobs": []},
        {"blobs": {"own": 10**12}},
        {"blobs": {"own": None}},
    ],
    ids=str,
)
def test_a_packets_file_with_a_damaged_header_counts_as_none(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.answer"
    write_packet(path, Packet("train", "{}", {"own": b"tensors"}))
    assert read_packet(path) == Packet("train", "{}", {"own": b"tensors"})
    header, _, rest = path.read_bytes().partition(b"\n")
    about = {**json.loads(header), "sha256": hashlib.sha256(rest).hexdigest(), **change}
    path.write_bytes(json.dumps(about).encode() + b"\n" + rest)
    assert read_packet(path) is None


@pytest.mark.parametrize("text", ["", "[]", '{"clients": [{"site": 3}]}', '{"classes": -1}', '{"more": 1}'])
def test_a_damaged_roster_is_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "roster.json").write_text(text)
    with pytest.raises(RunError, match=r"the roster .* is damaged .*: restore it from a backup"):
        read_roster(tmp_path / "roster.json")
