"""The protocol "verification": whether two images show the same person."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedra.core.batches import Examples, InputTransform
from fedra.core.evaluate import embed
from fedra.core.job import ServerJob
from fedra.core.model import Weights
from fedra.data import Dataset
from fedra.errors import DataError, RunFailed
from fedra.experiment.evaluators.evaluator import EvaluationOutcome
from fedra.faces.metrics.collapse import separate_zero_embeddings
from fedra.faces.metrics.error_rates import Scores
from fedra.faces.metrics.verification import verify
from fedra.runners.base import Runner


class VerificationEvaluator:
    """Ten-fold accuracy and AUROC on a data set's pairs, embedded in this process without mirroring."""

    def __init__(self, dataset: Dataset, transform: InputTransform) -> None:
        assert dataset.pairs is not None, "the data set has no pairs"
        pairs = dataset.pairs
        rows, indices = torch.unique(torch.stack([pairs.first, pairs.second]), return_inverse=True)
        self._images = Examples(dataset.test.inputs[rows], dataset.test.targets[rows], transform).kept()
        self._first, self._second = indices
        self._same = pairs.same

    def __call__(self, job: ServerJob, runner: Runner, weights: Weights) -> EvaluationOutcome:
        arranged = Weights(*(job.model.arrange(values) for values in weights))
        features = embed(job.model, arranged, self._images)
        return EvaluationOutcome(self.metrics(features, job.model.precision.passes))

    def metrics(self, features: Tensor, passes: torch.dtype = torch.float32) -> dict[str, Any]:
        """Compute the metrics of the embeddings of all images, and count embeddings that are zero.

        If embeddings have collapsed, the metrics are None and the reason is returned. `passes` is the network's type.
        """
        features, zeros, collapsed = separate_zero_embeddings(features, passes)
        notes: dict[str, Any] = {"zero_embeddings": zeros} if zeros else {}
        if collapsed is not None:
            return {"accuracy": None, "loss": None, "auroc": None, **notes, "collapsed": collapsed}
        first, second = features[self._first], features[self._second]
        try:
            accuracy = verify(first, second, self._same).accuracy
            auroc = Scores.of_pairs(torch.cosine_similarity(first.double(), second.double()), self._same).auroc()
        except DataError as error:
            raise RunFailed(f"the model cannot be verified: {error}") from None
        return {"accuracy": accuracy, "loss": None, "auroc": auroc, **notes}
