"""Formats that a mutation can take apart and put together again, so that it reaches code behind lengths and checksums.

A format turns the bytes of a file into a tree of dicts, lists, numbers, text and bytes, and a tree back into bytes.
Lengths, checksums and compression are made anew, and everything else is left to the mutation.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
import tomli_w
from google.protobuf import json_format

Tree = Any


@dataclass(frozen=True)
class Format:
    """How to take a file apart and to build it again; either may fail, and the file is then mutated as bytes."""

    parse: Callable[[bytes], Tree]
    build: Callable[[Tree], bytes]


def _dump(value: Tree) -> str:
    return json.dumps(value, default=lambda odd: odd.decode("latin1"))


def parse_tensors(data: bytes) -> Tree:
    """Take a safetensors file apart; JSON in its metadata becomes a tree too."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    about = {key: _try_json(text) for key, text in header.pop("__metadata__", {}).items()}
    return {"about": about, "header": header, "numbers": data[8 + length :]}


def build_tensors(tree: Tree) -> bytes:
    """Build a safetensors file."""
    header = dict(tree["header"])
    if tree["about"]:
        header["__metadata__"] = {
            key: value if isinstance(value, str) else _dump(value) for key, value in tree["about"].items()
        }
    packed = _dump(header).encode()
    return len(packed).to_bytes(8, "little") + packed + tree["numbers"]


def _try_json(text: str) -> Tree:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_zip(data: bytes) -> Tree:
    """Take a zip file apart; the header of a NumPy array becomes text."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {"members": {name: _parse_array(archive.read(name)) for name in archive.namelist()}}


def _parse_array(data: bytes) -> Tree:
    if data[:6] != b"\x93NUMPY":
        return data
    length = int.from_bytes(data[8:10], "little")
    return {
        "version": [data[6], data[7]],
        "header": data[10 : 10 + length].decode("latin1"),
        "values": data[10 + length :],
    }


def build_zip(tree: Tree) -> bytes:
    """Build a zip file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in tree["members"].items():
            archive.writestr(name, content if isinstance(content, bytes) else _build_array(content))
    return packed.getvalue()


def _build_array(tree: Tree) -> bytes:
    header = tree["header"].encode("latin1")
    return b"\x93NUMPY" + bytes(tree["version"]) + len(header).to_bytes(2, "little") + header + tree["values"]


def parse_tar(data: bytes) -> Tree:
    """Take an archive apart: of each member the name, the kind, the target of a link and the content."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [
            {
                "name": member.name,
                "kind": member.type,
                "link": member.linkname,
                "content": stream.read() if (stream := archive.extractfile(member)) else b"",
            }
            for member in archive
        ]


def build_tar(tree: Tree) -> bytes:
    """Build a compressed archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for entry in tree:
            member = tarfile.TarInfo(entry["name"])
            member.type, member.linkname, member.size = entry["kind"], entry["link"], len(entry["content"])
            archive.addfile(member, io.BytesIO(entry["content"]))
    return packed.getvalue()


def parse_matlab(data: bytes) -> Tree:
    """Take a MATLAB file of compressed elements apart."""
    elements, place = [], 128
    while place + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, place)
        content = data[place + 8 : place + 8 + size]
        elements.append({"kind": kind, "content": zlib.decompress(content) if kind == 15 else content})
        place += 8 + size
    return {"header": data[:128], "elements": elements}


def build_matlab(tree: Tree) -> bytes:
    """Build a MATLAB file."""
    parts = [tree["header"]]
    for element in tree["elements"]:
        content = zlib.compress(element["content"]) if element["kind"] == 15 else element["content"]
        parts.append(struct.pack("<II", element["kind"] % 2**32, len(content)) + content)
    return b"".join(parts)


def parse_packet(data: bytes) -> Tree:
    """Take a packet's file apart: its kind, its words and its blobs."""
    line, _, rest = data.partition(b"\n")
    about = json.loads(line)
    words, place, blobs = rest[: about["words"]], about["words"], {}
    for name, size in about["blobs"].items():
        blobs[name] = parse_tensors(rest[place : place + size])
        place += size
    return {"kind": about["kind"], "words": json.loads(words), "blobs": blobs}


def build_packet(tree: Tree) -> bytes:
    """Build a packet's file."""
    words = _dump(tree["words"]).encode()
    blobs = {name: blob if isinstance(blob, bytes) else build_tensors(blob) for name, blob in tree["blobs"].items()}
    pieces = b"".join([words, *blobs.values()])
    sizes = {name: len(blob) for name, blob in blobs.items()}
    about = {"kind": tree["kind"], "words": len(words), "blobs": sizes, "sha256": hashlib.sha256(pieces).hexdigest()}
    return json.dumps(about).encode() + b"\n" + pieces


def chain_lines(tree: Tree) -> bytes:
    """Build an audit log whose lines hold the hashes of those before them."""
    lines, before = [], "0" * 64
    for entry in tree:
        entry = {**entry, "before": before} if isinstance(entry, dict) else entry
        lines.append(_dump(entry).encode())
        before = hashlib.sha256(lines[-1]).hexdigest()
    return b"\n".join(lines) + b"\n"


def _parse_lines(data: bytes) -> Tree:
    return [json.loads(line) for line in data.splitlines()]


BYTES = Format(lambda data: data, lambda tree: tree)
JSON = Format(json.loads, lambda tree: _dump(tree).encode())
TOML = Format(lambda data: tomllib.loads(data.decode()), lambda tree: tomli_w.dumps(tree).encode())
LINES = Format(_parse_lines, lambda tree: "".join(_dump(line) + "\n" for line in tree).encode())
CHAIN = Format(_parse_lines, chain_lines)
WORDS = Format(
    lambda data: [line.split() for line in data.decode().splitlines()],
    lambda tree: "\n".join(" ".join(map(str, line)) for line in tree).encode(),
)
GZIP = Format(lambda data: {"inside": gzip.decompress(data)}, lambda tree: gzip.compress(tree["inside"], 1))
TENSORS = Format(parse_tensors, build_tensors)
ZIP = Format(parse_zip, build_zip)
TAR = Format(parse_tar, build_tar)
ONNX = Format(
    lambda data: json_format.MessageToDict(onnx.load_model_from_string(data)),
    lambda tree: json_format.ParseDict(tree, onnx.ModelProto()).SerializeToString(),
)
MATLAB = Format(parse_matlab, build_matlab)
PACKET = Format(parse_packet, build_packet)
