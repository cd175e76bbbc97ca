"""Face data sets; importing this package registers them."""

from fedra.faces.datasets import face_folders, packed_faces, synthetic_faces
from fedra.faces.datasets.celeba import read_identities
from fedra.faces.datasets.lfw_lists import read_pair_list, read_people
from fedra.faces.datasets.named_pair import NamedPair
from fedra.faces.datasets.recordio import Record, RecordFile
from fedra.faces.datasets.verification_sets import VerificationSet, bin_set, folder_set, lfw_set, verification_set

__all__ = [
    "NamedPair",
    "Record",
    "RecordFile",
    "VerificationSet",
    "bin_set",
    "face_folders",
    "folder_set",
    "lfw_set",
    "packed_faces",
    "read_identities",
    "read_pair_list",
    "read_people",
    "synthetic_faces",
    "verification_set",
]
