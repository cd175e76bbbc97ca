"""Synthetic identities: rendered faces for experiments, tests and teaching."""

from fedra.faces.synthetic.people import SyntheticFaces
from fedra.faces.synthetic.photos_of_people import PhotoSettings, photographs, write_photos

__all__ = ["PhotoSettings", "SyntheticFaces", "photographs", "write_photos"]
