"""Face recognition from photos: detection, alignment, galleries, verification and identification.

Example:
    >>> recognizer = fedra.faces.FaceRecognizer("runs/faces", detector="yunet")
    >>> for face in recognizer.detect("group.jpg"):
    ...     print(face.box, face.embedding)
    >>> gallery = fedra.faces.Gallery.open("staff.gallery", recognizer)
    >>> gallery.enroll("Ada", ["ada1.jpg", "ada2.jpg"])
    >>> gallery.identify("door.jpg").name
    'Ada'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.faces.photos.align_folder import AlignmentOutcome, align_folder
    from fedra.faces.photos.alignment import align_face, similarity, warp
    from fedra.faces.photos.any_photo import Photo, read_photo
    from fedra.faces.photos.detection import Detection, Detector, main_face
    from fedra.faces.photos.detectors import open_detector
    from fedra.faces.photos.known_points import KnownPoints
    from fedra.faces.photos.landmarks import five_points, template
    from fedra.faces.photos.photo_files import list_photos, read_photo_file
    from fedra.faces.recognition.answers import IdentificationResult, Match, PhotoIdentification, VerificationResult
    from fedra.faces.recognition.calibrate import Calibration, calibrate
    from fedra.faces.recognition.choose_threshold import calibrate_people
    from fedra.faces.recognition.enrollment import Enrollment, list_people_photos
    from fedra.faces.recognition.face import Face, FaceWarning
    from fedra.faces.recognition.gallery import Gallery
    from fedra.faces.recognition.gallery_changes import Removal, remove_person
    from fedra.faces.recognition.model_source import ModelSource
    from fedra.faces.recognition.recognizer import FaceRecognizer
    from fedra.faces.recognition.thresholds import Decision, ErrorRate, TemplateThreshold
    from fedra.faces.synthetic.people import SyntheticFaces
    from fedra.faces.synthetic.photos_of_people import PhotoSettings, photographs, write_photos

__all__ = [
    "AlignmentOutcome",
    "Calibration",
    "Decision",
    "Detection",
    "Detector",
    "Enrollment",
    "ErrorRate",
    "Face",
    "FaceRecognizer",
    "FaceWarning",
    "Gallery",
    "IdentificationResult",
    "KnownPoints",
    "Match",
    "ModelSource",
    "Photo",
    "PhotoIdentification",
    "PhotoSettings",
    "Removal",
    "SyntheticFaces",
    "TemplateThreshold",
    "VerificationResult",
    "align_face",
    "align_folder",
    "calibrate",
    "calibrate_people",
    "five_points",
    "list_people_photos",
    "list_photos",
    "main_face",
    "open_detector",
    "photographs",
    "read_photo",
    "read_photo_file",
    "remove_person",
    "similarity",
    "template",
    "warp",
    "write_photos",
]

_HOMES = {
    "fedra.faces.photos.align_folder": "AlignmentOutcome align_folder",
    "fedra.faces.photos.alignment": "align_face similarity warp",
    "fedra.faces.photos.any_photo": "Photo read_photo",
    "fedra.faces.photos.detection": "Detection Detector main_face",
    "fedra.faces.photos.detectors": "open_detector",
    "fedra.faces.photos.known_points": "KnownPoints",
    "fedra.faces.photos.landmarks": "five_points template",
    "fedra.faces.photos.photo_files": "list_photos read_photo_file",
    "fedra.faces.recognition.answers": "IdentificationResult Match PhotoIdentification VerificationResult",
    "fedra.faces.recognition.calibrate": "Calibration calibrate",
    "fedra.faces.recognition.choose_threshold": "calibrate_people",
    "fedra.faces.recognition.enrollment": "Enrollment list_people_photos",
    "fedra.faces.recognition.face": "Face FaceWarning",
    "fedra.faces.recognition.gallery": "Gallery",
    "fedra.faces.recognition.gallery_changes": "Removal remove_person",
    "fedra.faces.recognition.model_source": "ModelSource",
    "fedra.faces.recognition.recognizer": "FaceRecognizer",
    "fedra.faces.recognition.thresholds": "Decision ErrorRate TemplateThreshold",
    "fedra.faces.synthetic.people": "SyntheticFaces",
    "fedra.faces.synthetic.photos_of_people": "PhotoSettings photographs write_photos",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
