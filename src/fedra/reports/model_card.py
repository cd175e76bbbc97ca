"""The card beside an exported model: where it comes from, how good it was found to be, and how to call it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from fedra.config import reading as configuration
from fedra.config.schema import Config
from fedra.errors import DataError
from fedra.storage.run_folder import RunFolder

UNSTATED = "not stated: whoever hands the file on should say it here"


def model_card(
    run: RunFolder, config: Config, summary: Mapping[str, Any], about: Mapping[str, Any], file: str, license: str | None
) -> str:
    """The card as Markdown; `about` is what the ONNX file says of itself."""
    sections = [
        f"# {file.removesuffix('.onnx')}",
        _first(config, about),
        "## At a glance",
        _table(("", ""), _facts(config, summary, about, license)),
        "## Data",
        _data(config, summary),
        "## Method and settings",
        f"```toml\n{configuration.write(_public(config))}```",
        "## Results of the run",
        _results(summary),
        *_evaluations(run),
        "## Intended use and limits",
        _limits(about),
        "## How to call it",
        _call(about, file),
    ]
    return "\n\n".join(part.strip("\n") for part in sections) + "\n"


def _first(config: Config, about: Mapping[str, Any]) -> str:
    unit = " of unit length, compared by their inner product" if about["unit_length"] else ", compared by their cosine"
    return (
        f"A `{config.model.name}` network trained by `{config.algorithm.name}` with fedra {about['fedra_version']}. It "
        f"maps images to embeddings of {about['embedding']} numbers{unit}."
    )


def _facts(
    config: Config, summary: Mapping[str, Any], about: Mapping[str, Any], license: str | None
) -> Iterator[tuple[str, str]]:
    yield "input", f"`{about['input']}`: {about['input_type']} ({about['input_layout']}), {_size(about)}"
    yield "inside the file", _normalization(about)
    yield "output", f"`embedding`: float32 (N, {about['embedding']})"
    if about["classes"]:
        yield "output", f"`logits`: float32 (N, {len(about['classes'])}), one for each training class"
    yield "weights", f"{summary['parameters']:,}, the head of training included"
    if config.model.weights is not None:
        yield "started from", f"`{PurePath(config.model.weights).name}`"
    yield "license of the weights", license or UNSTATED
    yield "run", f"`{about['run_fingerprint'][:16]}` (SHA-256 of its model.safetensors)"
    yield "made with", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())


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
        f"The data set `{config.data.name}`, divided among {summary['clients']:,} clients by `{config.partition.name}` "
        "(settings below). Its own license and the consent of those it shows bind the use of this model too."
    )


def _public(config: Config) -> Config:
    """The configuration with folders of the machine it ran on cut to their last names."""
    return Config.model_validate(_shortened(config.model_dump()))


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(item) for item in value]
    return PurePath(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value


def _results(summary: Mapping[str, Any]) -> str:
    kind = "verification accuracy" if summary.get("protocol") == "verification" else "accuracy"
    rows = [("rounds", f"{summary['rounds']:,}"), ("sent by clients", f"{summary['bytes_up'] / 1e6:,.1f} MB")]
    if "collapsed" in summary:
        rows[:0] = [(f"{kind}, last", f"none: {summary['collapsed']}")]
    elif summary["final_accuracy"] is not None:
        rows[:0] = [
            (f"{kind}, last", f"{summary['final_accuracy']:.2%}"),
            (f"{kind}, best", f"{summary['best_accuracy']:.2%}"),
        ]
    return _table(("figure of the run's own tests", ""), rows)


def _evaluations(run: RunFolder) -> Iterator[str]:
    """The figures of `fedra eval`, of each set and protocol."""
    for path in sorted(run.path.glob("eval-*.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            parts = [(found["data"], name, part["table"]) for name, part in found["protocols"].items()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"'{path}' is no record of `fedra eval`: evaluate again, or remove it") from None
        for data, name, rows in parts:
            yield f"## Evaluation: {name} on {data}"
            yield _table(("figure", ""), rows.items())


def _limits(about: Mapping[str, Any]) -> str:
    return f"""For research on recognition, and for comparing images like those it was trained on.

- Inputs must be made as in training: {_size(about)}, for faces aligned by the same five points.
- An embedding alone decides nothing. Choose a threshold on images like yours (`fedra faces calibrate`), and state its
  error.
- The figures above hold for the sets they name. Errors across age, sex, skin color or cameras were not measured.
- Embeddings of people are biometric data: do not identify anybody without their consent and a legal ground, and do not
  let the model alone decide what happens to a person."""


def _call(about: Mapping[str, Any], file: str) -> str:
    shape = about["input_shape"]
    wanted = f"(N, {shape[1]}, {shape[2]}, {shape[0]})" if len(shape) == 3 else f"(N, {', '.join(map(str, shape))})"
    return f"""```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
{about["input"]} = np.zeros({wanted.replace("N", "2", 1)}, np.{about["input_type"]})  # yours, {wanted}
embedding = session.run(["embedding"], {{"{about["input"]}": {about["input"]}}})[0]
cosines = embedding @ embedding.T{"" if about["unit_length"] else "  # after a division by the lengths"}
```"""


def _table(heading: tuple[str, str], rows: Any) -> str:
    lines = [f"| {heading[0]} | {heading[1]} |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)
