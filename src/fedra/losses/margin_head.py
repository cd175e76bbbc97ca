"""A margin loss with its class weights, as one module for any training loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedra.errors import ConfigError
from fedra.losses.angle import working_dtype
from fedra.losses.angular_loss import AngularLoss, Cosines
from fedra.losses.stateful import Stateful

SPREAD = 0.01
"""Initial standard deviation of the class weights. Cosines do not depend on it; the angle of the first steps does."""


class MarginHead(nn.Module):
    """The last layer of a recognition network: class weights, and a margin loss between them and the features.

    The class weights `weight` (classes, features) start at normal random numbers with mean 0 and standard deviation
    0.01, so the classes start in random directions. The running state of a loss (CurricularFace, AdaFace, ...) is
    stored in buffers: every call in training mode updates it, after `eval()` it does not change. Parameters that a loss
    trains itself (a bias, margins per class) are parameters of the module.

    Args:
        loss: A margin loss, such as `fedra.losses.ArcFace(scale=64, margin=0.5)`.
        classes: Number of classes; labels are 0 to classes - 1.
        features: Length of the feature vectors.
        generator: Draws the initial class weights; None (the default) is torch's default generator.
        device: Device of the class weights; None (the default) is the CPU.
        dtype: Type of the class weights; None (the default) is torch's default. Losses are computed in float32 or
            wider.

    Example:
        >>> from fedra.losses import ArcFace
        >>> net = nn.Linear(16, 32)
        >>> head = MarginHead(ArcFace(), classes=10, features=32)
        >>> optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
        >>> images, labels = torch.randn(8, 16), torch.arange(8)
        >>> head(net(images), labels).backward()
        >>> head.logits(net(images)).argmax(dim=1).shape
        torch.Size([8])
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
                f"classes must be at least {loss.least_classes} and features at least 1 for {type(loss).__name__}, got "
                f"{classes} and {features}"
            )
        # Drawn on the CPU: the same on every device.
        start = SPREAD * torch.randn(classes, features, generator=generator)
        self.weight = nn.Parameter(start.to(device, dtype))
        self.margin = Stateful(loss, self.weight)

    @property
    def loss(self) -> AngularLoss:
        """The margin loss."""
        return self.margin.loss

    def forward(self, features: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean loss of a batch.

        Args:
            features: (B, features), not normalized: some losses use the norms.
            labels: (B,), integers.
            generator: Draws random margins (ElasticFace); None (the default) is torch's default generator.

        Returns:
            A scalar to call `backward()` on.
        """
        loss: Tensor = self.margin(features, self.weight, labels, generator)
        return loss

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores to predict with: the loss's scale times the cosine, without a margin.

        Args:
            features: (B, features).

        Returns:
            Scores (B, classes); the largest is the predicted class, and their softmax gives probabilities.
        """
        rows = features.to(working_dtype(features, self.weight))
        norms = torch.linalg.vector_norm(rows, dim=1)
        unused_labels = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        learned = dict(self.margin.learned.items())
        values = self.loss.compare(features, self.weight)
        batch = Cosines(values, unused_labels, rows, norms, self.margin.state, learned)
        return self.loss.scaling(batch) * batch.values

    def extra_repr(self) -> str:
        classes, features = self.weight.shape
        return f"{self.loss}, classes={classes}, features={features}"
