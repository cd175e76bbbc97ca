"""The model card of an exported model: origin, results, limits and usage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from fedra.config import reading as configuration
from fedra.config.schema import Config
from fedra.errors import DataError
from fedra.file_reading import read_text_file
from fedra.reports.run_files import shorten_paths
from fedra.storage.run_folder import RunFolder

UNSTATED = "not stated: add it here before you share the file"


def model_card(
    run: RunFolder, config: Config, summary: Mapping[str, Any], about: Mapping[str, Any], file: str, license: str | None
) -> str:
    """Return the card as Markdown; `about` is the metadata of the ONNX file."""
    sections = [
        f"# {file.removesuffix('.onnx')}",
        _introduction(config, about),
        "## At a glance",
        _table(("", ""), _facts(config, summary, about, license)),
        "## Data",
        _data(config, summary),
        "## Method and settings",
        f"```toml\n{configuration.write(_without_paths(config))}```",
        "## Results of the run",
        _results(summary),
        *_evaluations(run),
        "## Privacy",
        _privacy(summary),
        *_attack(summary),
        "## Intended use and limits",
        _limits(about, file),
        "## How to call it",
        _call(about, file),
    ]
    return "\n\n".join(part.strip("\n") for part in sections) + "\n"


def weights_card(
    weights: str, network: str, parameters: int, about: Mapping[str, Any], file: str, license: str | None
) -> str:
    """Return the card of a weight file, of whose training nothing is known."""
    facts = [
        *_interface(about),
        ("parameters", f"{parameters:,}"),
        ("license of the weights", license or UNSTATED),
        ("weights", f"`{weights}`, `{about['run_fingerprint'][:16]}` (SHA-256)"),
    ]
    sections = [
        f"# {file.removesuffix('.onnx')}",
        f"A `{network}` network with weights from a file, exported by fedra {about['fedra_version']}. {_maps(about)}",
        "## At a glance",
        _table(("", ""), facts),
        "## Data, method and results",
        "The weight file does not say how it was trained: add its source, its data and their license, and its results.",
        "## Intended use and limits",
        _limits(about, file),
        "## How to call it",
        _call(about, file),
    ]
    return "\n\n".join(sections) + "\n"


def _introduction(config: Config, about: Mapping[str, Any]) -> str:
    trained = f"trained by `{config.algorithm.name}` with fedra {about['fedra_version']}"
    return f"A `{config.model.name}` network {trained}. {_maps(about)}"


def _maps(about: Mapping[str, Any]) -> str:
    unit = " of unit length" if about["unit_length"] else ""
    similarity = "inner product" if about["unit_length"] else "cosine"
    return (
        f"It maps images to embeddings of {about['embedding']} dimensions{unit}; their similarity is the {similarity}."
    )


def _facts(
    config: Config, summary: Mapping[str, Any], about: Mapping[str, Any], license: str | None
) -> Iterator[tuple[str, str]]:
    yield from _interface(about)
    yield "parameters", f"{summary['parameters']:,}, including the training head"
    if config.model.weights is not None:
        yield "initial weights", f"`{PurePath(config.model.weights).name}`"
    yield "license of the weights", license or UNSTATED
    yield "run", f"`{about['run_fingerprint'][:16]}` (SHA-256 of its model.safetensors)"
    yield "versions", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())


def _interface(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "input", f"`{about['input']}`: {about['input_type']} ({about['input_layout']}), {_size(about)}"
    yield "preprocessing in the file", _normalization(about)
    yield "output", f"`embedding`: float32 (N, {about['embedding']})"
    if about["classes"]:
        yield "output", f"`logits`: float32 (N, {len(about['classes'])}), one per training class"


def _size(about: Mapping[str, Any]) -> str:
    channels, *sides = about["input_shape"]
    if len(sides) != 2:
        return "not images"
    return f"{sides[0]}x{sides[1]}, {'RGB' if channels == 3 else f'{channels} channels'}"


def _normalization(about: Mapping[str, Any]) -> str:
    scaled = "x / 255" if about["input_type"] == "uint8" else "x"
    if not about["mean"]:
        return f"{scaled}, no mean or std"
    return f"({scaled} - mean) / std with mean {about['mean']} and std {about['std']}"


def _data(config: Config, summary: Mapping[str, Any]) -> str:
    return (
        f"The data set `{config.data.name}`, partitioned over {summary['clients']:,} clients by "
        f"`{config.partition.name}` (settings below). The license of the data and the consent of the people in it also "
        "apply to this model."
    )


def _without_paths(config: Config) -> Config:
    """Shorten absolute paths in the configuration to their last component."""
    return Config.model_validate(shorten_paths(config.model_dump()))


def _results(summary: Mapping[str, Any]) -> str:
    kind = "verification accuracy" if summary.get("protocol") == "verification" else "accuracy"
    ended = ", interrupted" if summary.get("status") == "interrupted" else ""
    rows = [("rounds", f"{summary['rounds']:,}{ended}"), ("sent by clients", f"{summary['bytes_up'] / 1e6:,.1f} MB")]
    if "collapsed" in summary:
        rows[:0] = [(f"{kind}, last", f"none: {summary['collapsed']}")]
    elif summary["final_accuracy"] is not None:
        rows[:0] = [
            (f"{kind}, last", f"{summary['final_accuracy']:.2%}"),
            (f"{kind}, best", f"{summary['best_accuracy']:.2%}"),
        ]
    return _table(("metric on the run's test data", ""), rows)


def _evaluations(run: RunFolder) -> Iterator[str]:
    """Yield the results of `fedra eval` for each data set and protocol."""
    for path in sorted(run.path.glob("eval-*.json")):
        try:
            found = json.loads(read_text_file(path))
            parts = [(found["data"], name, part["table"]) for name, part in found["protocols"].items()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"'{path}' must be a file of `fedra eval`: evaluate again, or remove it") from None
        for data, name, rows in parts:
            yield f"## Evaluation: {name} on {data}"
            yield _table(("metric", ""), rows.items())


def _privacy(summary: Mapping[str, Any]) -> str:
    """Return the guarantee with its unit, its trust and its gaps; never epsilon alone."""
    found = summary.get("privacy")
    if found is None:
        return "No differential privacy was used. The weights may reveal training examples."
    if "epsilon" not in found:
        return "Noise was drawn from the run's seed, so it can be recomputed: there is no privacy guarantee."
    rows = [
        ("guarantee", f"({found['epsilon']:.2f}, {found['delta']:.0e})-differential privacy"),
        ("unit", found["unit"]),
        ("neighboring data", found["relation"]),
        ("trusted", found["trust"]),
        ("accountant", found["accountant"]),
        ("not covered", "; ".join(found["not_covered"])),
    ]
    return _table(("", ""), rows)


def _attack(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was simulated against the run, if anything was."""
    found = summary.get("attack")
    if not found:
        return
    yield "## Simulated attack"
    rates = (
        f" Images with its trigger are taken for class {found['target']} in {found['trigger_rate']:.1%} of the cases, "
        f"without it in {found['control_rate']:.1%}."
        if "trigger_rate" in found
        else ""
    )
    yield (
        f"{len(found['clients'])} of {summary['clients']:,} clients were malicious in a simulation of the attack "
        f"`{found['name']}`.{rates} The model is for the study of attacks: do not use it."
    )


def _limits(about: Mapping[str, Any], file: str) -> str:
    return f"""For research on recognition, and for comparing images similar to the training images.

- Prepare inputs as in training: {_size(about)}; align faces by the same five points.
- Choose a similarity threshold for this file on images like yours (`fedra faces calibrate --model {file} --on PHOTOS`),
  and report its error rates.
- The metrics above hold for the named data sets. Differences across age, sex, skin color or cameras were not measured.
- Embeddings of people are biometric data. Do not identify people without their consent and a legal basis, and do not
  base decisions about a person on the model alone."""


def _call(about: Mapping[str, Any], file: str) -> str:
    shape = about["input_shape"]
    layout = f"(N, {shape[1]}, {shape[2]}, {shape[0]})" if len(shape) == 3 else f"(N, {', '.join(map(str, shape))})"
    return f"""```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
{about["input"]} = np.zeros({layout.replace("N", "2", 1)}, np.{about["input_type"]})  # your images, {layout}
embedding = session.run(["embedding"], {{"{about["input"]}": {about["input"]}}})[0]
cosines = embedding @ embedding.T{"" if about["unit_length"] else "  # after dividing by the norms"}
```"""


def _table(heading: tuple[str, str], rows: Any) -> str:
    lines = [f"| {heading[0]} | {heading[1]} |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)
