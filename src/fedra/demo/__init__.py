"""What `fedra demo` shows: methods compared on digits, and faces from photographs to names."""

from fedra.demo.digits import compare_methods
from fedra.demo.faces import recognize_faces

__all__ = ["compare_methods", "recognize_faces"]
