"""Targets: galleries, thresholds, landmarks, record files, and the lists of face benchmarks."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from fuzz_formats import BYTES, JSON, ONNX, TENSORS, WORDS
from fuzz_target import Target
from onnx import helper
from targets_of_data import photo

from fedra.faces.benchmarks.ijb_lists import read_points, read_subjects, read_template_media, read_template_pairs
from fedra.faces.benchmarks.megaface_lists import read_megaface
from fedra.faces.datasets.celeba import list_celeba
from fedra.faces.datasets.gathering import read_names
from fedra.faces.datasets.lfw_lists import read_pair_list, read_people
from fedra.faces.datasets.recordio import MAGIC, RecordFile, read_property, record_people
from fedra.faces.datasets.verification_sets import _read_bin
from fedra.faces.metrics.feature_files import read_features
from fedra.faces.photos.known_points import KnownPoints
from fedra.faces.photos.yunet import KINDS, STRIDES, YuNet
from fedra.faces.recognition.gallery_file import GalleryContent, GalleryMetadata, names_in
from fedra.faces.recognition.model_source import ModelSource
from fedra.faces.recognition.onnx_model import open_onnx_embedder
from fedra.faces.recognition.thresholds import Decision, TemplateThreshold, read_decision


@cache
def gallery() -> Mapping[str, bytes]:
    """A gallery of two people."""
    source = ModelSource(path="/models/net.pt", network="mobilefacenet", size=(112, 96))
    about = GalleryMetadata(fingerprint="f" * 32, model=source, detector="yunet")
    people = {"Ada": torch.eye(4)[:2], "Grace Hopper": torch.eye(4)[2:]}
    return {"staff.gallery": GalleryContent.empty(about).with_people(people).pack()}


def search(folder: Path) -> None:
    """Open a gallery, search it and change it; what it says of itself must be consistent."""
    names_in(folder / "staff.gallery")
    found = GalleryContent.read(folder / "staff.gallery")
    assert sum(found.counts.values()) == int(found.photographs.sum())
    width = found.templates.shape[1]
    found.search(torch.ones(1, width), 2)
    again = found.with_people({"Edsger": torch.ones(1, width)}, "replace").without("Edsger")
    GalleryContent.parse(again.pack(), folder / "staff.gallery")


@cache
def threshold() -> Mapping[str, bytes]:
    """A threshold with one for templates."""
    three = TemplateThreshold(photos=3, value=0.5, attained=1e-3, impostors=900, people=30, interval=(1e-4, 2e-3))
    decision = Decision(
        fingerprint="f" * 32,
        value=0.4,
        far=1e-3,
        attained=1e-3,
        impostors=1000,
        genuine=90,
        tar=0.9,
        data="lfw",
        people=30,
        interval=(1e-4, 2e-3),
        templates=(three,),
    )
    return {"threshold.json": decision.model_dump_json(indent=2).encode()}


def decide(folder: Path) -> None:
    found = read_decision(ModelSource(path=str(folder)), "f" * 32)
    if found is not None:
        found.accepts(0.45, photos=3)
        str(found.gallery_rate([1, 3, 7]))


@cache
def points() -> Mapping[str, bytes]:
    """Landmarks of one photo."""
    return {"points.json": JSON.build({"Ada/1.jpg": [[30.0, 40.0], [60, 40], [45, 60], [35, 80], [55, 80]]})}


def align(folder: Path) -> None:
    KnownPoints(folder / "points.json").of("Ada/1.jpg")


def _record(count: int, labels: tuple[float, ...], content: bytes) -> bytes:
    one = labels[0] if not count else 0.0
    listed = struct.pack(f"<{count}f", *labels) if count else b""
    data = struct.pack("<IfQQ", count, one, 0, 0) + listed + content
    return struct.pack("<II", MAGIC, len(data)) + data + bytes(-len(data) % 4)


@cache
def records() -> Mapping[str, bytes]:
    """A record set of two people with two images each, as InsightFace packs them."""
    image = photo("JPEG")
    packed = [_record(2, (5.0, 7.0), b""), *(_record(0, (float(person),), image) for person in (0, 0, 1, 1))]
    packed += [_record(2, (1.0, 3.0), b""), _record(2, (3.0, 5.0), b"")]
    offsets = [sum(map(len, packed[:number])) for number in range(len(packed))]
    index = "".join(f"{key}\t{offset}\n" for key, offset in enumerate(offsets))
    return {"train.rec": b"".join(packed), "train.idx": index.encode(), "property": b"2,112,112"}


def read_records(folder: Path) -> None:
    read_property(folder / "property")
    found = RecordFile(folder / "train.rec")
    try:
        people = record_people(found, least=1)
        for key in people.keys.tolist()[:4]:
            found[key]
    finally:
        found._bytes.close()


@cache
def pairs_bin() -> Mapping[str, bytes]:
    """A .bin file of two verification pairs."""
    return {"lfw.bin": pickle.dumps(([photo("JPEG", size=(8, 8))] * 4, [True, False]), protocol=2)}


def read_bin(folder: Path) -> None:
    _read_bin(folder / "lfw.bin", 8, False)
    _read_bin(folder / "lfw.bin", 8, True)


@cache
def detector() -> Mapping[str, bytes]:
    """A network with YuNet's inputs and outputs: every cell is a weighted mean of its pixels."""
    nodes, constants, outputs = [], [], []
    for stride in STRIDES:
        for kind, width in KINDS.items():
            name = f"{kind}_{stride}"
            weights = helper.make_tensor(f"weights_{name}", 1, [width, 3, 1, 1], [0.01] * 3 * width)
            constants += [weights, helper.make_tensor(f"shape_{name}", 7, [3], [1, -1, width])]
            nodes += [
                helper.make_node(
                    "AveragePool", ["input"], [f"mean_{name}"], kernel_shape=[stride] * 2, strides=[stride] * 2
                ),
                helper.make_node("Conv", [f"mean_{name}", weights.name], [f"sum_{name}"]),
                helper.make_node("Transpose", [f"sum_{name}"], [f"turned_{name}"], perm=[0, 2, 3, 1]),
                helper.make_node("Reshape", [f"turned_{name}", f"shape_{name}"], [name]),
            ]
            outputs.append(helper.make_tensor_value_info(name, 1, [1, "cells", width]))
    inputs = [helper.make_tensor_value_info("input", 1, [1, 3, "height", "width"])]
    graph = helper.make_graph(nodes, "cells", inputs, outputs, constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    return {"detector.onnx": model.SerializeToString()}


def detect(folder: Path) -> None:
    """Open a detector and look for faces; boxes and points must be finite."""
    image = np.arange(60 * 80 * 3, dtype=np.uint8).reshape(60, 80, 3)
    for face in YuNet(folder / "detector.onnx")(image):
        assert np.isfinite(face.box).all()
        assert np.isfinite(face.landmarks).all()


@cache
def exported_model() -> Mapping[str, bytes]:
    """A network with the metadata of an exported one: the embedding is an image's mean color."""
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=1),
        helper.make_node("ReduceMean", ["floats"], ["embeddings"], axes=[1, 2], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("images", 2, ["batch", 8, 8, 3])]
    outputs = [helper.make_tensor_value_info("embeddings", 1, ["batch", 3])]
    model = helper.make_model(
        helper.make_graph(nodes, "color", inputs, outputs), ir_version=8, opset_imports=[helper.make_opsetid("", 13)]
    )
    about = {"input": "images", "input_layout": "N,H,W,C", "input_type": "uint8", "input_shape": "[3, 8, 8]"}
    helper.set_model_props(model, about)
    return {"face.onnx": model.SerializeToString()}


def embed(folder: Path) -> None:
    found = open_onnx_embedder(folder / "face.onnx")(torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8).to(torch.uint8))
    assert len(found) == 2


PEOPLE = "2\n2\nAda 3\nGrace 2\n1\nEdsger 4\n"
PAIRS = "2\t1\nAda\t1\t2\nAda\t1\tGrace\t1\nEdsger\t1\t3\nEdsger\t1\tGrace\t2\n"
SIMILAR = "".join("Ada/Ada_0001.jpg\nAda/Ada_0002.jpg\nAda/Ada_0001.jpg\nBob/Bob_0001.jpg\n" for _ in range(10))
CSV = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n1,10,a.jpg\n2,11,b.jpg\n2,11,c.jpg\n"
LANDMARKS = "1.jpg 30 40 60 40 45 60 35 80 55 80 0.99\n2.jpg 30.5 40 60 40 45 60 35 80 55 80 0.5\n"


@cache
def lists() -> Mapping[str, bytes]:
    """The lists of the benchmarks."""
    return {
        "people.txt": PEOPLE.encode(),
        "pairs.txt": PAIRS.encode(),
        "sllfw.txt": SIMILAR.encode(),
        "identity_CelebA.txt": b"000001.jpg 2880\n000002.jpg 2937\n",
        "images/000001.jpg": b"",
        "images/000002.jpg": b"",
        "tid_mid.txt": b"1.jpg 1 7\n2.jpg 2 8\n",
        "pair_label.txt": b"1 2 1\n2 1 0\n",
        "gallery.csv": CSV.encode(),
        "points.txt": LANDMARKS.encode(),
        "names.txt": b"Ada\t3\nGrace\n",
        "data/facescrub_lst": b"Ada/1.png\nAda/2.png\nBob/1.png\n",
        "data/megaface_lst": b"1/2/3.jpg\n4/5/6.jpg\n",
        "data/facescrub_noises.txt": b"# noise\n1\t2.png\n",
        "data/megaface_noises.txt": b"1/2/3.jpg\n",
        "a.bin": struct.pack("<4i3f", 3, 1, 4, 5, 0.1, 0.2, 0.3),
        "b.bin": struct.pack("<4i3f", 3, 1, 4, 5, 0.1, 0.2, 0.3),
    }


LISTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "lfw-people": ("people.txt", lambda folder: read_people(folder / "people.txt")),
    "lfw-pairs": ("pairs.txt", lambda folder: read_pair_list(folder / "pairs.txt")),
    "sllfw": ("sllfw.txt", lambda folder: read_pair_list(folder / "sllfw.txt")),
    "celeba": ("identity_CelebA.txt", lambda folder: list_celeba(folder / "identity_CelebA.txt", folder / "images")),
    "ijb-media": ("tid_mid.txt", lambda folder: read_template_media(folder / "tid_mid.txt")),
    "ijb-pairs": ("pair_label.txt", lambda f: read_template_pairs(f / "pair_label.txt", known=torch.tensor([1, 2]))),
    "ijb-gallery": ("gallery.csv", lambda folder: read_subjects(folder / "gallery.csv", known=torch.tensor([1, 2]))),
    "ijb-points": ("points.txt", lambda folder: read_points(folder / "points.txt")),
    "identity-names": ("names.txt", lambda folder: read_names(folder / "names.txt", ["Ada", "Grace"])),
    "megaface-list": ("data/facescrub_lst", read_megaface),
    "megaface-noise": ("data/megaface_noises.txt", read_megaface),
    "megaface-feature": ("a.bin", lambda folder: read_features([folder / "a.bin", folder / "b.bin"])),
}


def targets() -> list[Target]:
    """The targets of this file."""
    found = [
        Target("gallery", "staff.gallery", TENSORS, gallery, search),
        Target("threshold", "threshold.json", JSON, threshold, decide),
        Target("points", "points.json", JSON, points, align),
        Target("detector", "detector.onnx", ONNX, detector, detect),
        Target("onnx-model", "face.onnx", ONNX, exported_model, embed),
        Target("record-file", "train.rec", BYTES, records, read_records),
        Target("record-index", "train.idx", WORDS, records, read_records),
        Target("record-property", "property", BYTES, records, read_records),
        Target("bin", "lfw.bin", BYTES, pairs_bin, read_bin),
    ]
    for name, (file, read) in LISTS.items():
        found.append(Target(name, file, BYTES if file.endswith(".bin") else WORDS, lists, read))
    return found
