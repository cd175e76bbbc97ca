"""From photographs to names: detection, alignment, galleries of templates, verification and identification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.faces.photos.align_folder import AlignmentOutcome, align_folder
    from fedra.faces.photos.alignment import align_face, similarity, warp
    from fedra.faces.photos.detection import Detector, Face, main_face
    from fedra.faces.photos.detectors import open_detector
    from fedra.faces.photos.known_points import KnownPoints
    from fedra.faces.photos.landmarks import five_points, template
    from fedra.faces.photos.photo_files import photographs_in, read_photograph
    from fedra.faces.recognition.calibrate import calibrate
    from fedra.faces.recognition.enrollment import Enrolment, enrol, forget, people_in, person_at
    from fedra.faces.recognition.gallery import Gallery, Match
    from fedra.faces.recognition.recognizer import FaceRecognizer, ModelSource, open_recognizer
    from fedra.faces.recognition.thresholds import Decision, calibrate_people, save_decision, stored_decision

__all__ = [
    "AlignmentOutcome",
    "Decision",
    "Detector",
    "Enrolment",
    "Face",
    "FaceRecognizer",
    "Gallery",
    "KnownPoints",
    "Match",
    "ModelSource",
    "align_face",
    "align_folder",
    "calibrate",
    "calibrate_people",
    "enrol",
    "five_points",
    "forget",
    "main_face",
    "open_detector",
    "open_recognizer",
    "people_in",
    "person_at",
    "photographs_in",
    "read_photograph",
    "save_decision",
    "similarity",
    "stored_decision",
    "template",
    "warp",
]

_HOMES = {
    "AlignmentOutcome": "fedra.faces.photos.align_folder",
    "Decision": "fedra.faces.recognition.thresholds",
    "Detector": "fedra.faces.photos.detection",
    "Enrolment": "fedra.faces.recognition.enrollment",
    "Face": "fedra.faces.photos.detection",
    "FaceRecognizer": "fedra.faces.recognition.recognizer",
    "Gallery": "fedra.faces.recognition.gallery",
    "KnownPoints": "fedra.faces.photos.known_points",
    "Match": "fedra.faces.recognition.gallery",
    "ModelSource": "fedra.faces.recognition.recognizer",
    "align_face": "fedra.faces.photos.alignment",
    "align_folder": "fedra.faces.photos.align_folder",
    "calibrate": "fedra.faces.recognition.calibrate",
    "calibrate_people": "fedra.faces.recognition.thresholds",
    "enrol": "fedra.faces.recognition.enrollment",
    "five_points": "fedra.faces.photos.landmarks",
    "forget": "fedra.faces.recognition.enrollment",
    "main_face": "fedra.faces.photos.detection",
    "open_detector": "fedra.faces.photos.detectors",
    "open_recognizer": "fedra.faces.recognition.recognizer",
    "people_in": "fedra.faces.recognition.enrollment",
    "person_at": "fedra.faces.recognition.enrollment",
    "photographs_in": "fedra.faces.photos.photo_files",
    "read_photograph": "fedra.faces.photos.photo_files",
    "save_decision": "fedra.faces.recognition.thresholds",
    "similarity": "fedra.faces.photos.alignment",
    "stored_decision": "fedra.faces.recognition.thresholds",
    "template": "fedra.faces.photos.landmarks",
    "warp": "fedra.faces.photos.alignment",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
