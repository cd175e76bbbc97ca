"""`fedra.evaluate`: evaluate any model on any data with the field's protocols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from fedra.config.names import read_word
from fedra.core.device import build_device
from fedra.errors import ConfigError
from fedra.evaluation.metrics import MetricChoice, choose_metrics
from fedra.evaluation.results import ModelEvaluation
from fedra.experiment.evaluate_model import (
    check_protocols,
    classify_on,
    evaluate_run_test,
    protocols_for_run,
    refuse_run_only,
)
from fedra.experiment.evaluate_network import (
    FACE_SIZE,
    EvaluationOptions,
    Network,
    evaluate_benchmark,
    evaluate_network,
    find_benchmark,
    to_face_input,
)
from fedra.experiment.evaluation_data import On
from fedra.experiment.evaluation_report import EvaluationReport
from fedra.experiment.result import RunResult
from fedra.models import Embedder
from fedra.models.embedder import Flip
from fedra.storage.evaluation_record import TEST
from fedra.storage.trained_model import load_embedder, load_embedder_weights, load_trained_model


def evaluate(
    model: Path | str | Network | Embedder | Any,
    on: On | None = None,
    protocols: Sequence[str] = (),
    *,
    metrics: MetricChoice = (),
    network: str | None = None,
    size: tuple[int, int] | None = None,
    prepare: Callable[[Tensor], Tensor] = to_face_input,
    flip: Flip = "none",
    detector: Path | str | None = None,
    pairs: int | None = None,
    seed: int = 0,
    batch: int = 64,
    device: str | None = None,
    trust: bool = False,
    console: Console | None = None,
) -> EvaluationReport:
    """Evaluate a model with the standard protocols of the field.

    Args:
        model: A run's folder or `RunResult`; a weight file, with `network`; a module from images to embeddings, with
            or without `body` and `head`; or any function from a batch of images to embeddings.
        on: A data set with its fields (`"lfw:fold=3"`), a folder of identity or class folders, a folder with LFW's
            pairs.txt, an InsightFace .bin file, a folder of IJB-B, IJB-C or MegaFace, a `Dataset`, or a pair
            (images, labels) of tensors; the run's own test data if None.
        protocols: Any of classification, verification, identification and open-set; on a run's own data also clients
            and training-gallery. By default a run is evaluated with the protocol of its training, and an embedder by
            verification.
        metrics: Metrics of classification: names, functions (targets, probabilities) -> number, or a mapping from
            names to functions; all built-in metrics if empty.
        network: The network of a weight file with its fields, such as `"mobilefacenet:embedding=128"`.
        size: Height and width of the input of a module, function or weight file; by default those of the images in
            `on`, or 112x112 if they are read from files.
        prepare: Converts uint8 images (N, C, H, W) to the input of a module or function; by default scales them to
            -1..1, as face networks are trained. Floating-point tensors in `on` are not converted.
        flip: How to add the embedding of the mirrored image: "none", "sum" or "concatenate".
        detector: Face detector for a folder of photos: "yunet", an .onnx file, or a folder with MTCNN's files.
        pairs: Number of pairs to sample if the data define none; up to 6,000 by default.
        seed: Seed of the random samples.
        batch: Number of images per batch.
        device: Device to run on; a module's own device, or the CPU, if None.
        trust: Whether to import the functions that a run names as `module:function`.
        console: Where progress and warnings are printed.

    Returns:
        A report with `metrics`, `table`, `print()` and `save(folder)`.

    Example:
        >>> import fedra
        >>> faces = "synthetic-faces:identities=2,images=4,test_identities=8,size=32"
        >>> report = fedra.evaluate(lambda images: images.flatten(1), on=faces)
        >>> 0.5 <= report.metrics["verification"]["accuracy"] <= 1
        True
    """
    chosen = check_protocols(protocols)
    asked = choose_metrics(metrics) if metrics else ()
    if isinstance(model, RunResult):
        model = model.folder or model.model
    settings: dict[str, object] = {"flip": flip, "pairs": pairs, "seed": seed}
    settings |= {} if network is None else {"network": network, "input": "x".join(map(str, size or FACE_SIZE))}
    settings |= {} if detector is None else {"detector": str(detector)}
    options = EvaluationOptions(
        chosen, asked, network, size, prepare, flip, detector, pairs, seed, batch, device, console, trust
    )
    if not isinstance(model, str | Path):
        if on is None:
            raise ConfigError("on must be set for a model without a run, which has no test data of its own, got None")
        return EvaluationReport(evaluate_network(model, on, options), None, settings)
    path = Path(model)
    return EvaluationReport(_evaluate_path(path, on, options), path, settings)


def _evaluate_path(path: Path, on: On | None, options: EvaluationOptions) -> ModelEvaluation:
    """Evaluate a run's folder, a weight file, or a folder of features."""
    if on is None or on == TEST:
        return _evaluate_own_data(path, options)
    opened = partial(_embedder_of_path, path, options)
    benchmark = find_benchmark(on)
    if benchmark is not None:
        return evaluate_benchmark(path, opened, benchmark, options)
    wanted = options.protocols
    is_run = options.network is None and path.is_dir()
    if is_run and not wanted:
        wanted = protocols_for_run(path, on, options.console, options.trust)
    refuse_run_only(wanted)
    if "classification" not in wanted:
        return options.compare(opened(), on, wanted)
    if not is_run:
        raise ConfigError(
            f"classification needs a run's folder or a module, got the weight file '{path}', which has no classes"
        )
    device = build_device(options.device or "cpu")
    found = classify_on(
        load_trained_model(path, trust=options.trust), on, options.metrics, device=device, console=options.console
    )
    others = tuple(protocol for protocol in wanted if protocol != "classification")
    more = options.compare(opened(), on, others).outcomes if others else {}
    return ModelEvaluation(found.name, found.data, found.outcomes | more, found.source)


def _evaluate_own_data(path: Path, options: EvaluationOptions) -> ModelEvaluation:
    """Evaluate a run on its own test data."""
    if options.network is not None:
        raise ConfigError("on must be set for a weight file, which has no test data of its own")
    if options.detector is not None:
        raise ConfigError(
            "a detector needs a folder of photos, got the run's own test data: set on, or leave the detector out"
        )
    return evaluate_run_test(
        path,
        options.protocols,
        metrics=options.metrics,
        flip=options.flip,
        pairs=options.pairs,
        seed=options.seed,
        device=options.device or "cpu",
        trust=options.trust,
        console=options.console,
    )


def _embedder_of_path(path: Path, options: EvaluationOptions) -> Embedder:
    device = options.device or "cpu"
    if options.network is None:
        if path.is_file():
            raise ConfigError(
                f"network (--network) must be set for the weight file '{path}': set it, or give a run's folder"
            )
        return load_embedder(
            path, fit="crop", flip=options.flip, batch=options.batch, device=device, trust=options.trust
        )
    name, settings = read_word(options.network)
    shape = (3, *(options.size or FACE_SIZE))
    return load_embedder_weights(
        path, name, shape=shape, fit="crop", flip=options.flip, batch=options.batch, device=device, **settings
    )
