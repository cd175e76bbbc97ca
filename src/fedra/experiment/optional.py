"""What only some runs use: privacy, secure sums, diagnostics, tests of recognition. Imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedra.lazy import lazy_names

if TYPE_CHECKING:
    from fedra.analysis.diagnostics import add_proximal_diagnostics, class_vectors_of, observers
    from fedra.analysis.softmax_agreement import softmax_agreement
    from fedra.experiment.evaluators import recognition
    from fedra.experiment.evaluators.client_evaluator import ClientEvaluator
    from fedra.experiment.evaluators.verification_evaluator import VerificationEvaluator
    from fedra.experiment.example_run import ExampleRun
    from fedra.experiment.private_run import PrivateRun, add_privacy, check_privacy, open_private_run
    from fedra.privacy.secure.secure_messages import SecureRoundError

__all__ = [
    "ClientEvaluator",
    "ExampleRun",
    "PrivateRun",
    "SecureRoundError",
    "VerificationEvaluator",
    "add_privacy",
    "add_proximal_diagnostics",
    "check_privacy",
    "class_vectors_of",
    "observers",
    "open_private_run",
    "recognition",
    "softmax_agreement",
]

_HOMES = {
    "fedra.analysis.diagnostics": "add_proximal_diagnostics class_vectors_of observers",
    "fedra.analysis.softmax_agreement": "softmax_agreement",
    "fedra.experiment.evaluators.client_evaluator": "ClientEvaluator",
    "fedra.experiment.evaluators.recognition": "recognition",
    "fedra.experiment.evaluators.verification_evaluator": "VerificationEvaluator",
    "fedra.experiment.example_run": "ExampleRun",
    "fedra.experiment.private_run": "PrivateRun add_privacy check_privacy open_private_run",
    "fedra.privacy.secure.secure_messages": "SecureRoundError",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
