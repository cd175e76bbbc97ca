"""Targets: galleries, thresholds, landmarks, record files, and the lists of face benchmarks."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch
from fuzz_formats import BYTES, JSON, TENSORS, WORDS
from fuzz_target import Target
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
from fedra.faces.recognition.gallery_file import GalleryContent, GalleryMetadata, names_in
from fedra.faces.recognition.model_source import ModelSource
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
        Target("record-file", "train.rec", BYTES, records, read_records),
        Target("record-index", "train.idx", WORDS, records, read_records),
        Target("record-property", "property", BYTES, records, read_records),
        Target("bin", "lfw.bin", BYTES, pairs_bin, read_bin),
    ]
    for name, (file, read) in LISTS.items():
        found.append(Target(name, file, BYTES if file.endswith(".bin") else WORDS, lists, read))
    return found
