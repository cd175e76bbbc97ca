"""Faces: verification sets, the lists of LFW, CelebA and IJB, record files, and a painter of made-up people."""

from fedra.data.faces.celeba import read_identities
from fedra.data.faces.ijb import (
    ImagePoints,
    TemplateMedia,
    TemplatePairs,
    TemplateSubjects,
    read_points,
    read_subjects,
    read_template_media,
    read_template_pairs,
)
from fedra.data.faces.lfw_lists import NamedPair, read_pair_list, read_people
from fedra.data.faces.made_up import MadeUpFaces
from fedra.data.faces.photographs import PhotographSettings, photographs, write_photographs
from fedra.data.faces.recordio import Record, RecordFile
from fedra.data.faces.verification import VerificationSet, bin_set, folder_set, lfw_set, verification_set

__all__ = [
    "ImagePoints",
    "MadeUpFaces",
    "NamedPair",
    "PhotographSettings",
    "Record",
    "RecordFile",
    "TemplateMedia",
    "TemplatePairs",
    "TemplateSubjects",
    "VerificationSet",
    "bin_set",
    "folder_set",
    "lfw_set",
    "photographs",
    "read_identities",
    "read_pair_list",
    "read_people",
    "read_points",
    "read_subjects",
    "read_template_media",
    "read_template_pairs",
    "verification_set",
    "write_photographs",
]
