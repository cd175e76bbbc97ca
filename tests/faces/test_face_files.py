"""Verification .bin files, record files and lists, each written here by a writer of its own."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedra.data import load
from fedra.errors import ConfigError, DataError
from fedra.faces.benchmarks.ijb_lists import read_points, read_subjects, read_template_media, read_template_pairs
from fedra.faces.datasets import RecordFile, bin_set, read_identities, verification_set

DRAW = np.random.default_rng(11)
MAGIC = struct.pack("<I", 0xCED7230A)


def picture(size: tuple[int, int] = (32, 32)) -> tuple[np.ndarray, bytes]:
    pixels = DRAW.integers(0, 256, (*size, 3), dtype=np.uint8)
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "PNG")
    return pixels.transpose(2, 0, 1), packed.getvalue()


def python2_pickle(images: Sequence[bytes], same: Sequence[bool]) -> bytes:
    """As Python 2 wrote it with protocol 2: byte strings by the opcode T, which Python 3 takes for text."""
    strings = b"".join(b"T" + struct.pack("<i", len(image)) + image for image in images)
    truths = b"".join(b"\x88" if one else b"\x89" for one in same)
    return b"\x80\x02](" + strings + b"e](" + truths + b"e\x86."


WRITERS: dict[str, Callable[[list[bytes], list[bool]], bytes]] = {
    **{f"protocol {n}": (lambda images, same, n=n: pickle.dumps((images, same), n)) for n in range(2, 6)},
    "python 2": python2_pickle,
    "array of bools": lambda images, same: pickle.dumps((images, np.array(same))),
    "numpy bools": lambda images, same: pickle.dumps((images, [np.bool_(one) for one in same])),
    "old numpy": lambda images, same: pickle.dumps((images, np.array(same)), 2).replace(b"numpy._core", b"numpy.core"),
    "arrays of bytes": lambda images, same: pickle.dumps(([np.frombuffer(one, np.uint8) for one in images], same)),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_bin_files_read_back_exactly(tmp_path: Path, kind: str) -> None:
    images = [picture() for _ in range(6)]
    (tmp_path / "pairs.bin").write_bytes(WRITERS[kind]([packed for _, packed in images], [True, False, True]))
    for _ in range(2):  # decoded, then from the cache
        found = bin_set(tmp_path / "pairs.bin", size=32)
        assert np.array_equal(found.images.numpy(), np.stack([pixels for pixels, _ in images]))
        assert found.pairs.same.tolist() == [True, False, True]
        assert found.pairs.first.tolist() == [0, 2, 4]
        assert found.pairs.second.tolist() == [1, 3, 5]
        assert found.people.tolist() == [0, 0, 1, 2, 3, 3]


class Calls:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


HOSTILE: dict[str, bytes] = {
    "a command": pickle.dumps(([Calls(os.system, "true")], [True])),
    "an expression": pickle.dumps(([b"", b""], [Calls(eval, "1 / 0")])),
    "python 2 built-ins": b"c__builtin__\neval\n(S'1 / 0'\ntR.",
    "a nested name": b"\x80\x04\x8c\x05numpy\x94\x8c\x0bctypeslib.x\x94\x93.",
    "a file": pickle.dumps(([Calls(open, "/etc/hostname")], [True])),
    "numpy's loader": b"cnumpy\nload\n(S'x'\ntR.",
    "another codec": b"c_codecs\nencode\n(Vabc\nVrot13\ntR.",
    "getattr": b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'tofile'\ntR.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "pairs.bin").write_bytes(HOSTILE[kind])
    with pytest.raises(DataError, match=r"pairs.bin is not a .bin file .*(it asks for|encoding)"):
        bin_set(tmp_path / "pairs.bin")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not a .bin file"),
        (b"\x80\x04 no pickle", "is not a .bin file"),
        (pickle.dumps([1, 2, 3]), "must contain a list of images and a list of booleans"),
        (pickle.dumps(("text", [True])), "its images must be a list, got a str"),
        (pickle.dumps(([b"x", 3], [True])), "image 1 must be bytes, got a int"),
        (pickle.dumps(([b"x", b"y"], [True, False])), "must have 2 images per pair, got 2 for 2"),
        (pickle.dumps(([b"x", b"y"], [7])), "label of pair 0 must be true or false, got 7"),
        (pickle.dumps(([b"x", b"y"], True)), "at least one image must be readable"),
    ],
)
def test_damaged_bin_files(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "pairs.bin").write_bytes(content)
    with pytest.raises(DataError, match=told):
        bin_set(tmp_path / "pairs.bin")


def record(data: bytes) -> bytes:
    """One record, cut wherever the magic number stands at a multiple of four bytes."""
    pieces, start = [], 0
    for place in range(0, len(data) - 3, 4):
        if data[place : place + 4] == MAGIC and place >= start:
            pieces.append(data[start:place])
            start = place + 4
    pieces.append(data[start:])
    flags = [0] if len(pieces) == 1 else [1, *[2] * (len(pieces) - 2), 3]
    written = b""
    for flag, piece in zip(flags, pieces, strict=True):
        padding = b"\0" * (-len(piece) % 4)
        written += MAGIC + struct.pack("<I", flag << 29 | len(piece)) + piece + padding
    return written


def header(*labels: float, key: int = 0) -> bytes:
    if len(labels) == 1:
        return struct.pack("<IfQQ", 0, labels[0], key, 0)
    return struct.pack("<IfQQ", len(labels), 0.0, key, 0) + struct.pack(f"<{len(labels)}f", *labels)


def write_records(folder: Path, records: dict[int, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    lines = []
    with (folder / "train.rec").open("wb") as body:
        for key, data in records.items():
            lines.append(f"{key}\t{body.tell()}\n")
            body.write(record(data))
    (folder / "train.idx").write_text("".join(lines))
    return folder / "train.rec"


def casia(folder: Path, counts: Sequence[int], *, ranges: bool = True) -> list[np.ndarray]:
    """InsightFace's layout: record 0, the images from 1 on, then a record for each identity."""
    pixels, records, spans, key = [], {}, [], 1
    for label, count in enumerate(counts):
        spans.append((key, key + count))
        for _ in range(count):
            image, packed = picture()
            pixels.append(image)
            records[key] = (header(label, 0.5, key=key) if ranges else header(label, key=key)) + packed
            key += 1
    if ranges:
        records = {0: header(key, key + len(counts)), **records}
        records |= {key + place: header(*span) for place, span in enumerate(spans)}
    write_records(folder, records)
    (folder / "property").write_text(f"{len(counts)},32,32\n")
    return pixels


@pytest.mark.parametrize("ranges", [True, False])
def test_record_sets_read_back_exactly(tmp_path: Path, ranges: bool) -> None:
    pixels = casia(tmp_path / "casia", [3, 2, 4], ranges=ranges)
    for path in ("casia", "casia/train.rec"):
        dataset = load("record-faces", root=tmp_path, path=path, size=32, test_fraction=0.3)
        assert dataset.classes == ("0", "1", "2")
        assert dataset.train.targets.tolist() == [0, 0, 1, 2, 2, 2]
        both = {bytes(one.numpy().tobytes()) for split in (dataset.train, dataset.test) for one in split.inputs}
        assert both == {one.tobytes() for one in pixels}
    enough = load("record-faces", root=tmp_path, path="casia", size=32, least=3, identities=1, test_fraction=0.4)
    assert enough.classes == ("0",)
    strangers = load("record-faces", root=tmp_path, path="casia", size=32, test_identities=2, pairs=2, test_fraction=0)
    assert len(strangers.classes) == 1
    assert strangers.pairs is not None


def test_records_that_contain_the_magic_number(tmp_path: Path) -> None:
    contents = [MAGIC, b"abcd" + MAGIC + b"ef", MAGIC + MAGIC + b"x", b"abc" + MAGIC, b"abcd" * 3 + MAGIC, b""]
    path = write_records(tmp_path, {key: header(key, key=key) + content for key, content in enumerate(contents)})
    records = RecordFile(path)
    assert len(records) == 6
    for key, content in enumerate(contents):
        assert records[key].content == content
        assert records[key].labels == records.labels(key) == (float(key),)


def test_verification_beside_a_record_set(tmp_path: Path) -> None:
    casia(tmp_path / "casia", [3, 3])
    content = pickle.dumps(([picture()[1] for _ in range(4)], [True, False]))
    (tmp_path / "casia" / "lfw.bin").write_bytes(content)
    dataset = load("record-faces", root=tmp_path, path="casia", size=32, verify="casia/lfw.bin", test_fraction=0.3)
    assert dataset.pairs is not None
    assert dataset.pairs.same.tolist() == [True, False]
    assert torch.equal(
        dataset.test.inputs[dataset.pairs.first[1]], verification_set(tmp_path / "casia/lfw.bin", size=32).images[2]
    )


def test_damaged_record_sets(tmp_path: Path) -> None:
    def refused(told: str) -> None:
        with pytest.raises(DataError, match=told):
            load("record-faces", root=tmp_path, path="casia", size=32)

    refused(r".*casia.* does not exist")
    casia(tmp_path / "casia", [2, 2])
    rec, idx = tmp_path / "casia" / "train.rec", tmp_path / "casia" / "train.idx"
    whole, index = rec.read_bytes(), idx.read_text()
    idx.unlink()
    refused(r".*train.idx does not exist: a record set is a .rec file with an .idx file")
    idx.write_text("0 zero\n")
    refused("must have a key and an offset on every line")
    idx.write_text(index + "0\t0\n")
    refused("has a key twice")
    idx.write_text(index.replace("1\t", "99\t", 1))
    refused("has no record 1")
    idx.write_text(index)
    rec.write_bytes(whole[: len(whole) // 2])
    refused("train.rec, record .*: (the file ends before it|there is no complete record)")
    rec.write_bytes(b"\1" + whole[1:])
    refused("train.rec, record 0: there is no complete record at its offset")
    rec.write_bytes(b"")
    refused("train.rec is empty")
    rec.write_bytes(whole)
    (tmp_path / "casia" / "property").write_text("1,32,32")
    refused(r"must be below 1 \(its property file\), got 1")
    for text in ("two people", "9" * 5000 + ",32,32"):
        (tmp_path / "casia" / "property").write_text(text)
        refused("must have one line 'identities,height,width'")
    with pytest.raises(DataError, match=r"no identity has 9 images .* in"):
        load("record-faces", root=tmp_path, path="casia", least=9)


def test_records_of_wrong_identities(tmp_path: Path) -> None:
    one, other = (header(label, 0.0) + picture()[1] for label in (4, 5))
    write_records(tmp_path / "a", {0: header(3, 4), 1: one, 2: other, 3: header(1, 3)})
    with pytest.raises(DataError, match=r"records 1 to 2 must have one label, got \[4, 5\]"):
        load("record-faces", root=tmp_path, path="a", size=32)
    write_records(tmp_path / "b", {0: header(9, 3), 1: one})
    with pytest.raises(DataError, match=r"record 0: its labels must be a range, got"):
        load("record-faces", root=tmp_path, path="b", size=32)
    for number, (first, span) in enumerate([((2, 3), (1, 1e5)), ((2, 1e5), (1, 2)), ((2, 3), (1, 4))]):
        write_records(tmp_path / f"far{number}", {0: header(*first), 1: one, 2: header(*span)})
        with pytest.raises(DataError, match=rf"record {2 * (number != 1)}: its labels must be a range, got"):
            load("record-faces", root=tmp_path, path=f"far{number}", size=32)
    write_records(tmp_path / "c", {1: header(-1) + picture()[1]})
    with pytest.raises(DataError, match=r"record 1: its label must be an identity, got -1.0"):
        load("record-faces", root=tmp_path, path="c", size=32)
    write_records(tmp_path / "d", {1: header(0) + b"no image", 2: header(0) + picture()[1]})
    with pytest.raises(DataError, match=r"train.rec: 1 images cannot be used.*image 0"):
        load("record-faces", root=tmp_path, path="d", size=32)


def celeba(root: Path, identities: dict[str, int]) -> None:
    images = root / "celeba" / "img_align_celeba"
    images.mkdir(parents=True)
    for name in identities:
        (images / name).write_bytes(picture((44, 36))[1])
    lines = "".join(f"{name} {person}\n" for name, person in identities.items())
    (root / "celeba" / "identity_CelebA.txt").write_text(lines)


def test_celeba_by_identity(tmp_path: Path) -> None:
    celeba(tmp_path, {"1.jpg": 12, "2.jpg": 7, "3.jpg": 12, "4.jpg": 7, "5.jpg": 7, "6.jpg": 3})
    dataset = load("celeba-identities", root=tmp_path, size=32, test_fraction=0.3)
    assert dataset.classes == ("03", "07", "12")
    assert dataset.train.targets.bincount().tolist() == [1, 2, 1]
    assert dataset.shape == (3, 32, 32)
    assert load("celeba-identities", root=tmp_path, size=32, least=3, test_fraction=0.3).classes == ("07",)
    (tmp_path / "celeba" / "img_align_celeba" / "3.jpg").unlink()
    with pytest.raises(DataError, match=r"but 1 are missing, such as 3.jpg"):
        load("celeba-identities", root=tmp_path, size=32)
    with pytest.raises(ConfigError, match="has no field 'leest'"):
        load("celeba-identities", root=tmp_path, leest=3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("1.jpg\n", "line 1: a line must be an image and an identity, got '1.jpg'"),
        ("a 1\nb 2\na 1\n", "line 3: .* twice"),
        ("a " + "9" * 5000, "line 1: a line must be an image and an identity, got 'a 9{58}'"),
    ],
)
def test_damaged_celeba_lists(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(DataError, match=told):
        read_identities(tmp_path / "list.txt")
    with pytest.raises(DataError, match="does not exist"):
        read_identities(tmp_path / "none.txt")


def test_ijb_lists(tmp_path: Path) -> None:
    (tmp_path / "tid_mid.txt").write_text("1.jpg 1 10\n2.jpg 1 11\n3.jpg 5 12\n")
    media = read_template_media(tmp_path / "tid_mid.txt")
    assert media.images == ("1.jpg", "2.jpg", "3.jpg")
    assert media.templates.tolist() == [1, 1, 5]
    assert media.media.tolist() == [10, 11, 12]
    (tmp_path / "pairs.txt").write_text("1 5 0\n5 5 1\n")
    pairs = read_template_pairs(tmp_path / "pairs.txt", known=media.templates)
    assert (pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist()) == ([1, 5], [5, 5], [False, True])
    (tmp_path / "gallery.csv").write_text("TEMPLATE_ID,SUBJECT_ID,FILENAME\n5,77,a\n1,3,b\n5,77,c\n")
    gallery = read_subjects(tmp_path / "gallery.csv", known=media.templates)
    assert (gallery.templates.tolist(), gallery.subjects.tolist()) == ([1, 5], [3, 77])
    (tmp_path / "points.txt").write_text("1.jpg " + " ".join(map(str, range(10))) + " 0.75\n")
    points = read_points(tmp_path / "points.txt")
    assert points.points.tolist() == [[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]]
    assert points.scores.tolist() == [0.75]


@pytest.mark.parametrize(
    ("reader", "text", "told"),
    [
        (read_template_media, "1.jpg 1\n", "line 1: a line must have 3 words, got 2"),
        (read_template_media, "1.jpg one 1\n", "must contain numbers"),
        (read_template_media, "1.jpg 1 99999999999999999999\n", "must contain numbers"),
        (read_template_media, "", "is empty"),
        (read_template_pairs, "", "the file is empty"),
        (read_template_pairs, "1 2 0\n1 2 3\n", "line 2: the label must be 0 or 1, got 3"),
        (read_template_pairs, "1 2\n", "a line must have 3 numbers, got 2"),
        (read_template_pairs, "1 2 x\n", "cannot be read as integers"),
        (read_subjects, "TEMPLATE,SUBJECT_ID\n1,2\n", "must have a column 'TEMPLATE_ID'"),
        (read_subjects, "TEMPLATE_ID,SUBJECT_ID\n1,2\n1,3\n", "template 1 has two"),
        (read_subjects, "TEMPLATE_ID,SUBJECT_ID\n1,\n", "must contain numbers"),
        (read_subjects, "TEMPLATE_ID,SUBJECT_ID\n1,99999999999999999999\n", "must contain numbers"),
        (read_points, "1.jpg 1 2 3\n", "line 1: a line must have 12 words, got 4"),
    ],
)
def test_damaged_ijb_lists(tmp_path: Path, reader: Callable[[Path], Any], text: str, told: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(DataError, match=told):
        reader(tmp_path / "list.txt")
    with pytest.raises(DataError, match=r"none.txt cannot be read"):
        reader(tmp_path / "none.txt")


def test_ijb_templates_without_images(tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("1 9 0\n")
    with pytest.raises(DataError, match="lists template 9, which has no images"):
        read_template_pairs(tmp_path / "pairs.txt", known=torch.tensor([1, 2]))
