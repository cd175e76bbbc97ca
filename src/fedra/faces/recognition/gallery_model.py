"""Whose templates a gallery holds: its model and detector, and the recognizer that they make."""

from __future__ import annotations

from pathlib import Path

from fedra.errors import ConfigError
from fedra.faces.recognition.gallery_file import GalleryContent, GalleryMetadata
from fedra.faces.recognition.recognizer import FaceRecognizer


def recognizer_of(
    content: GalleryContent,
    model: Path | str | None,
    detector: Path | str | None,
    network: str | None,
    device: str,
) -> FaceRecognizer:
    """The gallery's own model and detector, unless others are given; another model's templates are refused."""
    about = content.about
    if about.model is None:
        raise ConfigError("the gallery was made by a module or callable: open it with a recognizer of that model")
    source = about.model.model_copy(update={} if network is None else {"network": network})
    if model is not None:
        source = source.model_copy(update={"path": str(Path(model).expanduser().resolve())})
    content.check_model(source.fingerprint())
    if detector is None and about.detector is None and about.detector_fingerprint is not None:
        raise ConfigError("the gallery was made with a detector that is not a file: name the detector to use")
    recognizer = FaceRecognizer(source, detector or about.detector, device=device)
    if detector is None and recognizer.detector_fingerprint != about.detector_fingerprint:
        raise ConfigError(
            f"the detector '{about.detector}' is not what it was at the enrollment: name the detector to use"
        )
    return recognizer


def metadata_of(recognizer: FaceRecognizer) -> GalleryMetadata:
    """What a gallery says of the recognizer that makes its templates."""
    return GalleryMetadata(
        model=recognizer.source,
        fingerprint=recognizer.fingerprint,
        detector=recognizer.detector_name,
        detector_fingerprint=recognizer.detector_fingerprint,
    )


def current_content(file: Path, recognizer: FaceRecognizer) -> GalleryContent:
    """What a gallery's file holds now, no one if it is not there; templates of another model are refused."""
    if not file.exists():
        return GalleryContent.empty(metadata_of(recognizer))
    known = GalleryContent.read(file)
    known.check_model(recognizer.fingerprint)
    return known
