"""Recognition models: every one is a `body` that makes features and a `head` that makes logits."""

from fedra.models import (  # noqa: F401  (each registers its models)
    dense,
    fedarc,
    fedavg_cnn,
    ghostfacenet,
    iresnet,
    mobilefacenet,
    resnet,
    sphereface_net,
    vgg,
    vit,
)
from fedra.models.catalogue import MODELS, build
from fedra.models.embedder import Embedder
from fedra.models.pretrained import Loaded, digest_of_weights, load_weights
from fedra.models.projection import with_projection
from fedra.models.recogniser import Recogniser, parameters_of
from fedra.models.user_model import NamedHead, check, named_head

__all__ = [
    "MODELS",
    "Embedder",
    "Loaded",
    "NamedHead",
    "Recogniser",
    "build",
    "check",
    "digest_of_weights",
    "load_weights",
    "named_head",
    "parameters_of",
    "with_projection",
]
