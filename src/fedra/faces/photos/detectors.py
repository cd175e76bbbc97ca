"""Detectors by name or by path."""

from __future__ import annotations

from pathlib import Path

from fedra.errors import DataError
from fedra.faces.photos.detection import Detector
from fedra.faces.photos.mtcnn import FILES, MTCNN
from fedra.faces.photos.yunet import YuNet, public_yunet


def open_detector(name: Path | str) -> Detector:
    """YuNet from an ONNX file, MTCNN from a folder of three, or "yunet" for the public file, downloaded if need be."""
    path = detector_path(name)
    if not path.is_dir():
        return YuNet(path)
    if missing := [file for file in FILES if not (path / file).is_file()]:
        raise DataError(
            f"the folder '{path}' has no {missing[0]}: give YuNet's .onnx file, or a folder with {', '.join(FILES)}"
        )
    return MTCNN(path)


def detector_path(name: Path | str) -> Path:
    """The file or folder that a detector's name or path leads to."""
    return public_yunet() if str(name) == "yunet" and not Path(name).exists() else Path(name).expanduser()
