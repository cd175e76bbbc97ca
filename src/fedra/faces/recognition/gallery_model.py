"""The model and detector of a gallery, and the recognizer built from them."""

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
    *,
    trust: bool = False,
) -> FaceRecognizer:
    """Open the gallery's model and detector, or those given instead; raise if the model is not the gallery's."""
    about = content.about
    if about.model is None:
        raise ConfigError(
            "a recognizer must be passed for this gallery, because its model is a module or callable: "
            "Gallery.open(path, recognizer)"
        )
    source = about.model.model_copy(update={} if network is None else {"network": network})
    if model is not None:
        source = source.model_copy(update={"path": str(Path(model).expanduser().resolve())})
    content.check_model(source.fingerprint())
    if detector is None and about.detector is None and about.detector_fingerprint is not None:
        raise ConfigError("detector must be set for this gallery, because its own is not a file: give a detector")
    recognizer = FaceRecognizer(source, detector or about.detector, device=device, trust=trust)
    if detector is None and recognizer.detector_fingerprint != about.detector_fingerprint:
        raise ConfigError(
            f"the detector '{about.detector}' has changed since the gallery was created: give the detector to use"
        )
    return recognizer


def metadata_of(recognizer: FaceRecognizer) -> GalleryMetadata:
    """Return the metadata that a gallery stores about its recognizer."""
    return GalleryMetadata(
        model=recognizer.source,
        fingerprint=recognizer.fingerprint,
        detector=recognizer.detector_name,
        detector_fingerprint=recognizer.detector_fingerprint,
    )


def current_content(file: Path, recognizer: FaceRecognizer) -> GalleryContent:
    """Read a gallery file, empty if it does not exist; raise if it belongs to another model."""
    if not file.exists():
        return GalleryContent.empty(metadata_of(recognizer))
    known = GalleryContent.read(file)
    known.check_model(recognizer.fingerprint)
    return known
