"""What the way of a photograph costs: the warp of a crop, detection around its network, identification of many.

The warp is compared with OpenCV's, one thread each; the detector with the bare run of its network on the same input,
planes of floats; the identification of 32 photographs (640x480, JPEG) with the embedding of their crops alone, by
MobileFaceNet. The detector is the YuNet file that FEDRA_TEST_YUNET names, or a network of the same layers with random
weights, as MTCNN's always are.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from unittest import mock

import numpy as np
import onnxruntime
import torch
from made_detectors import shift_for, write_mtcnn, write_yunet
from measure import Row, Timings, cores, in_turns, main, parser
from numpy.typing import NDArray
from PIL import Image

from fedra.faces import FaceRecognizer, FaceWarning, Gallery, align_face, similarity, template, warp
from fedra.faces.photos.mtcnn import MTCNN
from fedra.faces.photos.onnx_network import Floats, Network
from fedra.faces.photos.yunet import YuNet
from fedra.models import build

Bytes = NDArray[np.uint8]
WARP, DETECTION = 2.0, 1.15
SIZE = (112, 112)
CROPS = 200
"""Crops per repeat: one takes a tenth of a millisecond."""
CALLS = 15
"""Detections while a detector is open."""

Opener = Callable[[], YuNet | MTCNN]


def _portrait(width: int, height: int) -> Bytes:
    """A photograph of a person that comes with matplotlib."""
    with resources.as_file(resources.files("matplotlib") / "mpl-data/sample_data/grace_hopper.jpg") as path:
        return np.array(Image.open(path).convert("RGB").resize((width, height)))


def _repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(times):
            call()

    return work


def _per_call(timings: Timings, times: int) -> Timings:
    return Timings({name: [second / times for second in seconds] for name, seconds in timings.seconds.items()})


def _microseconds(timings: Timings, *names: str) -> str:
    return ", ".join(f"{name} {1e6 * timings.best(name):.0f} us" for name in names)


def _warp_rows(repeats: int, crops: int) -> list[Row]:
    image = _portrait(512, 600)
    points = (template(112) - 56) @ np.array([[1.29, 0.15], [-0.15, 1.29]]) + [265, 230]
    matrix = similarity(points, template(112))
    rivals: dict[str, Callable[[], object]] = {
        "warp": lambda: warp(image, matrix, SIZE),
        "align_face": lambda: align_face(image, points),
    }
    try:
        import cv2
    except ImportError:
        print("OpenCV is not installed (pip install opencv-python-headless): the warp is compared with Pillow's")
        other, target = "Pillow", None
        back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))[:2].ravel().tolist()
        picture = Image.fromarray(image)
        affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
        rivals[other] = lambda: picture.transform(SIZE, affine, back, bilinear)
    else:
        other, target = "OpenCV", WARP
        cv2.setNumThreads(1)
        rivals[other] = lambda: cv2.warpAffine(image, matrix, SIZE)
    torch.set_num_threads(1)
    works = {name: _repeated(call, crops) for name, call in rivals.items()}
    timings = _per_call(in_turns(works, repeats), crops)
    torch.set_num_threads(cores())
    return [
        Row(
            f"{name} to 112x112 against {other}'s warp, time",
            timings.ratio(name, other),
            target=wanted,
            note=_microseconds(timings, name, other),
        )
        for name, wanted in (("warp", target), ("align_face", None))
    ]


def _open_yunet(folder: Path) -> tuple[Opener, str]:
    """How the detector is opened, and what its network is."""
    if given := os.environ.get("FEDRA_TEST_YUNET"):
        return lambda: YuNet(given), "YuNet"
    path, image = folder / "yunet.onnx", _portrait(640, 480)
    write_yunet(path)
    write_yunet(path, shift_for(path, _inputs(YuNet(path), image)[0][1], 10))
    return lambda: YuNet(path), "YuNet's layers"


def _open_mtcnn(folder: Path) -> tuple[Opener, str]:
    """The same for MTCNN: random weights, and scores that let about as many candidates pass as in photographs."""
    write_mtcnn(folder)
    return lambda: MTCNN(folder, scores=(0.8, 0.06, 0.85)), "MTCNN's layers"


def _inputs(detector: YuNet | MTCNN, image: Bytes) -> list[tuple[Path, Floats]]:
    """Every network that a detector runs on an image, with its input as planes of floats."""
    seen: list[tuple[Path, Floats]] = []
    run = Network.__call__

    def record(network: Network, values: Floats | Bytes) -> dict[str, Floats]:
        planes = values[..., ::-1].transpose(0, 3, 1, 2) if values.dtype == np.uint8 else values
        seen.append((network.path, np.array(planes, dtype=np.float32, order="C")))
        return run(network, values)

    with mock.patch.object(Network, "__call__", record):
        detector(image)
    return seen


def _bare_networks(inputs: Sequence[tuple[Path, Floats]]) -> Callable[[], object]:
    """The networks of a detector, each with its input, and nothing around them."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    opened = {path: onnxruntime.InferenceSession(path, settings) for path, _ in inputs}
    calls = [(opened[path], {opened[path].get_inputs()[0].name: values}) for path, values in inputs]
    return lambda: [session.run(None, values) for session, values in calls]


def _one_open_at_a_time(rivals: Mapping[str, Callable[[], Callable[[], object]]], repeats: int) -> Timings:
    """Time CALLS calls of each rival in turns: onnxruntime's threads wait actively and slow other sessions down."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for repeat in range(repeats):
        for name in list(rivals)[:: 1 if repeat % 2 else -1]:
            call = rivals[name]()
            timings = in_turns({name: call}, CALLS, warm_up=3)
            seconds[name] += timings.seconds[name]
            del call
    return Timings(seconds)


def _detection_rows(opener: Opener, layers: str, sizes: Sequence[tuple[int, int]], repeats: int) -> list[Row]:
    rows = []
    for width, height in sizes:
        image = _portrait(width, height)
        inputs = _inputs(opener(), image)
        rivals: dict[str, Callable[[], Callable[[], object]]] = {
            "detector": lambda image=image: partial(opener(), image),
            "bare": lambda inputs=inputs: _bare_networks(inputs),
        }
        timings = _one_open_at_a_time(rivals, repeats)
        what = f"{layers}: detection in {width}x{height} pixels against the bare network, time"
        ratio = timings.ratio("detector", "bare")
        rows.append(Row(what, ratio, target=DETECTION, note=timings.note("detector", "bare")))
    return rows


def _identify_rows(detector: YuNet | MTCNN, folder: Path, photos: int, repeats: int) -> list[Row]:
    torch.manual_seed(0)
    recognizer = FaceRecognizer(build("mobilefacenet", (3, *SIZE), 10).eval(), detector, size=112)
    image, paths = _portrait(640, 480), []
    for number in range(photos):
        paths.append(folder / f"{number}.jpg")
        Image.fromarray(np.roll(image, number, axis=1)).save(paths[-1], quality=90)
    gallery = Gallery.open(folder / "people.gallery", recognizer)
    gallery.enroll("Grace", paths[0])
    crops = [recognizer.main_face(path).crop for path in paths]
    rivals = {
        "in one call": lambda: list(gallery.identify_each(paths)),
        "one by one": lambda: [gallery.identify(path) for path in paths],
        "embedding": lambda: recognizer.embed_crops(crops),
    }
    timings = _per_call(in_turns(rivals, repeats), photos)
    return [
        Row(
            f"{photos} photographs identified {name} against embedding alone, time",
            timings.ratio(name, "embedding"),
            note=timings.note(name, "embedding") + " for a photograph",
        )
        for name in ("in one call", "one by one")
    ]


def measure(quick: bool) -> list[Row]:
    """The ratios of the warp, of detection and of identification."""
    warnings.simplefilter("ignore", FaceWarning)  # a network with random weights finds several faces
    sizes = ((320, 240),) if quick else ((640, 480), (1280, 960), (4000, 3000))
    rows = _warp_rows(*((2, 2) if quick else (15, CROPS)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opener, layers = _open_yunet(folder)
        rows += _detection_rows(opener, layers, sizes, 1 if quick else 10)
        rows += _detection_rows(*_open_mtcnn(folder), sizes[:1], 1 if quick else 5)
        rows += _identify_rows(opener(), folder, 3 if quick else 32, 1 if quick else 5)
    return rows


if __name__ == "__main__":
    main(measure, parser(__doc__))
