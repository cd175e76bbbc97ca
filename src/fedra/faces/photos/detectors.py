"""Open detectors by name or by path."""

from __future__ import annotations

from pathlib import Path

from fedra.errors import DataError
from fedra.faces.photos.detection import Detector
from fedra.faces.photos.mtcnn import FILES, MTCNN
from fedra.faces.photos.yunet import YuNet, public_yunet


def open_detector(name: Path | str) -> Detector:
    """Open a detector by its name or files; needs the extra `faces` (`pip install 'fedra[faces]'`).

    Args:
        name: "yunet" for the public YuNet file (downloaded once), the path of a YuNet `.onnx` file, or a folder with
            MTCNN's `pnet.onnx`, `rnet.onnx` and `onet.onnx`.

    Returns:
        A callable that maps an image, `uint8` (H, W, 3) in RGB, to a list of `Detection`.

    Example:
        >>> for found in open_detector("yunet")(read_photo("group.jpg")):
        ...     print(found.box, found.score)
    """
    path = detector_path(name)
    if not path.is_dir():
        return YuNet(path)
    if missing := [file for file in FILES if not (path / file).is_file()]:
        raise DataError(
            f"the detector folder '{path}' must contain {', '.join(FILES)}, but {missing[0]} is missing: add it, or "
            "give YuNet's .onnx file"
        )
    return MTCNN(path)


def detector_path(name: Path | str) -> Path:
    """Return the file or folder of a detector given by name or path."""
    return public_yunet() if str(name) == "yunet" and not Path(name).exists() else Path(name).expanduser()
