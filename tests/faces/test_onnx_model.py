"""An exported .onnx file is a recognizer's model: calibrated, enrolled and verified with the numbers of its users."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedra.errors import FedraError, RunError
from fedra.faces import Detector, FaceRecognizer, Gallery, calibrate
from fedra.faces.recognition.model_source import ModelSource
from fedra.storage.trained_model import load_embedder


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from fedra.experiment.export import export

    return export(model, tmp_path_factory.mktemp("export") / "face.onnx").file


def test_its_embeddings_are_those_of_the_run_without_mirror_images(exported: Path, model: Path) -> None:
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = ModelSource(path=str(exported)).embedder()(images)
    wanted = torch.nn.functional.normalize(load_embedder(model)(images))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_it_is_calibrated_and_enrolled_with(
    exported: Path, photographs: Path, detector: Detector, tmp_path: Path
) -> None:
    recognizer = FaceRecognizer(str(exported), detector)
    found = calibrate(recognizer, photographs, far=0.2)
    assert found.path == exported.with_name("face.onnx.threshold.json")
    assert found.decision.data == photographs.name  # and not where it is on this machine
    gallery = Gallery.open(tmp_path / "staff.gallery", recognizer)
    gallery.enroll("Ada", [photographs / "person_00000" / "0000.jpg"])
    assert gallery.identify(photographs / "person_00000" / "0000.jpg").matches[0].name == "Ada"
    assert f"fedra faces calibrate --model {exported.name}" in exported.with_suffix(".md").read_text()


def test_other_files_are_told(exported: Path, tmp_path: Path) -> None:
    import onnx

    other = onnx.load(exported)
    del other.metadata_props[:]
    onnx.save(other, tmp_path / "foreign.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no network")
    for name, told in (
        ("foreign.onnx", "must read images of bytes and be exported by fedra"),
        ("broken.onnx", "is not a usable ONNX network"),
        ("missing.onnx", "cannot be read"),
    ):
        with pytest.raises(RunError, match=told):
            ModelSource(path=str(tmp_path / name)).embedder()
    with pytest.raises(FedraError):
        FaceRecognizer(str(tmp_path / "missing.onnx"))
