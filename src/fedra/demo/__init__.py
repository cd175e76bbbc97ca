"""The parts of `fedra demo`: a comparison of methods on digits, and face recognition from photos to names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.demo.digits_demo import compare_methods
    from fedra.demo.face_demo import recognize_faces
    from fedra.demo.quick_demo import compare_methods_quickly, recognize_faces_quickly

__all__ = ["compare_methods", "compare_methods_quickly", "recognize_faces", "recognize_faces_quickly"]

_HOMES = {
    "fedra.demo.digits_demo": "compare_methods",
    "fedra.demo.face_demo": "recognize_faces",
    "fedra.demo.quick_demo": "compare_methods_quickly recognize_faces_quickly",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
