"""Recognition models: every model has a `body` that computes features and a `head` that computes logits.

`build("resnet18", (3, 32, 32), 10)` builds one by name, `named_head` splits your own network, and `register` gives your
own function a name.
"""

from fedra.models.embedder import Embedder
from fedra.models.pretrained import Loaded, hash_weights, load_weights
from fedra.models.projection import with_projection
from fedra.models.recognition_model import RecognitionModel, count_parameters
from fedra.models.user_model import NamedHead, check, named_head
from fedra.models.zoo import MODELS, build, register

__all__ = [
    "MODELS",
    "Embedder",
    "Loaded",
    "NamedHead",
    "RecognitionModel",
    "build",
    "check",
    "count_parameters",
    "hash_weights",
    "load_weights",
    "named_head",
    "register",
    "with_projection",
]
