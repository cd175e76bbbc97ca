"""Synthetic identities: rendered faces for experiments, tests and teaching."""

from fedra.faces.synthetic.people import SyntheticFaces
from fedra.faces.synthetic.photos_of_people import PhotographSettings, photographs, write_photographs

__all__ = ["PhotographSettings", "SyntheticFaces", "photographs", "write_photographs"]
