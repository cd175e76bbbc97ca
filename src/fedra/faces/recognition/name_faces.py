"""Faces compared with the people of a gallery, and decided by a threshold where there is one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedra.faces.recognition.answers import IdentificationResult
from fedra.faces.recognition.face import Face
from fedra.faces.recognition.gallery_file import GalleryContent
from fedra.faces.recognition.thresholds import Decision


def name_faces(
    people: GalleryContent, faces: Sequence[Face], top: int, decision: Decision | None, threshold: float | None
) -> tuple[IdentificationResult, ...]:
    """A result for each face; a template is judged by the threshold for its number of photographs."""
    found = people.search(torch.stack([face.embedding for face in faces]), top) if faces else []
    rate = decision.gallery_rate(people.counts.values()) if decision is not None else None
    results = []
    for face, matches in zip(faces, found, strict=True):
        best = matches[0]
        limit = decision.at(people.counts[best.name]).value if decision is not None else threshold
        accepted = None if limit is None else best.score >= limit
        name = best.name if accepted else None
        results.append(IdentificationResult(name, tuple(matches), limit, accepted, decision, rate, face, face.notes))
    return tuple(results)
