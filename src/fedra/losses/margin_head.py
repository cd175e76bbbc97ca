"""A margin loss with the class weights it needs, as one module for any training loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedra.errors import ConfigError
from fedra.losses.angle import working_dtype
from fedra.losses.angular_loss import AngularLoss, Cosines
from fedra.losses.stateful import Stateful

SPREAD = 0.01
"""Standard deviation of the class weights at the start. Cosines do not depend on it; the first steps' angles do."""


class MarginHead(nn.Module):
    """The last layer of a recognition network: class weights, and a margin loss between them and the features.

    The class weights `weight` (classes, features) start at normal random numbers of standard deviation 0.01 and mean 0,
    so the classes begin in random directions. The running state of a loss that has one (CurricularFace, AdaFace, ...)
    is kept in buffers: in training mode every call advances it, after `eval()` it stays as it is. Parameters that a
    loss trains itself (a bias, margins per class) are parameters of the module.

    Args:
        loss: A margin loss, such as `fedra.losses.ArcFace(scale=64, margin=0.5)`.
        classes: How many classes there are; labels are 0 to classes - 1.
        features: The length of the feature vectors.
        generator: Draws the initial class weights; torch's default generator if None.
        device: Where the class weights are.
        dtype: Their type; losses are computed in float32 or wider whatever it is.

    Example:
        ```python
        net, head = Backbone(512), fedra.losses.MarginHead(fedra.losses.ArcFace(), classes=10_000, features=512)
        optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
        loss = head(net(images), labels)
        loss.backward()
        predicted = head.logits(net(images)).argmax(dim=1)
        ```
    """

    def __init__(
        self,
        loss: AngularLoss,
        classes: int,
        features: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(loss, AngularLoss):
            raise ConfigError(f"loss must be a margin loss such as fedra.losses.ArcFace(), got {loss!r}")
        if classes < loss.least_classes or features < 1:
            raise ConfigError(
                f"{type(loss).__name__} needs at least {loss.least_classes} classes and 1 feature, got classes = "
                f"{classes} and features = {features}"
            )
        start = SPREAD * torch.randn(classes, features, generator=generator)  # on the CPU: the same on every device
        self.weight = nn.Parameter(start.to(device, dtype))
        self.margin = Stateful(loss, self.weight)

    @property
    def loss(self) -> AngularLoss:
        """The margin loss."""
        return self.margin.loss

    def forward(self, features: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The mean loss of a batch.

        Args:
            features: (B, features), of any length: the loss decides whether lengths matter.
            labels: (B,), whole numbers.
            generator: Draws random margins (ElasticFace); torch's default generator if None.

        Returns:
            A scalar to call `backward()` on.
        """
        loss: Tensor = self.margin(features, self.weight, labels, generator)
        return loss

    def logits(self, features: Tensor) -> Tensor:
        """The scores (B, classes) to predict by: the loss's scale times the cosine, without a margin.

        Args:
            features: (B, features).

        Returns:
            Scores whose largest is the predicted class; a softmax makes probabilities of them.
        """
        rows = features.to(working_dtype(features, self.weight))
        norms = torch.linalg.vector_norm(rows, dim=1)
        nobody = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        learned = dict(self.margin.learned.items())
        values = self.loss.compare(features, self.weight)
        seen = Cosines(values, nobody, rows, norms, self.margin.state, learned)
        return self.loss.scaling(seen) * seen.values

    def extra_repr(self) -> str:
        classes, features = self.weight.shape
        return f"{self.loss}, classes={classes}, features={features}"
