"""Search a gallery for faces and apply the threshold."""

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
    """Return a result for each face; the threshold depends on the number of photos in the best match's template."""
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
