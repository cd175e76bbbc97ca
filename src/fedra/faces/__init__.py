"""From photographs to names: detection, alignment, galleries of templates, verification and identification."""

from fedra.faces.aligning import Outcome, align_folder
from fedra.faces.alignment import align_face, similarity, warp
from fedra.faces.calibration import calibrate
from fedra.faces.detection import Detector, Face, main_face
from fedra.faces.detectors import open_detector
from fedra.faces.enrolment import Enrolment, enrol, forget, people_in, person_at
from fedra.faces.gallery import Gallery, Match
from fedra.faces.known_points import KnownPoints
from fedra.faces.landmarks import five_points, template
from fedra.faces.photographs import photographs_in, read_photograph
from fedra.faces.recogniser import ModelSource, Recogniser, open_recogniser
from fedra.faces.thresholds import Decision, calibrate_people, save_decision, stored_decision

__all__ = [
    "Decision",
    "Detector",
    "Enrolment",
    "Face",
    "Gallery",
    "KnownPoints",
    "Match",
    "ModelSource",
    "Outcome",
    "Recogniser",
    "align_face",
    "align_folder",
    "calibrate",
    "calibrate_people",
    "enrol",
    "five_points",
    "forget",
    "main_face",
    "open_detector",
    "open_recogniser",
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
