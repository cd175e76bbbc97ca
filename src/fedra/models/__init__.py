"""Recognition models: every one is a `body` that makes features and a `head` that makes logits."""

from fedra.models import dense, fedarc, fedavg_cnn, resnet, vgg, vit  # noqa: F401  (each registers its models)
from fedra.models.catalogue import MODELS, build
from fedra.models.projection import with_projection
from fedra.models.recogniser import Recogniser, parameters_of
from fedra.models.user_model import NamedHead, check, named_head

__all__ = ["MODELS", "NamedHead", "Recogniser", "build", "check", "named_head", "parameters_of", "with_projection"]
