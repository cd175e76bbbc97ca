"""What `fedra demo` shows: methods compared on digits, and faces from photographs to names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.demo.digits_demo import compare_methods
    from fedra.demo.face_demo import recognize_faces

__all__ = ["compare_methods", "recognize_faces"]

_HOMES = {"compare_methods": "fedra.demo.digits_demo", "recognize_faces": "fedra.demo.face_demo"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
