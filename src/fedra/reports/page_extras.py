"""The sections that only some runs have: dynamics, classes, clients, evaluations and privacy."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedra.reports.page_blocks import (
    DataTable,
    Disclosure,
    FigureGrid,
    PageBlock,
    PageFigure,
    PageSection,
    Paragraph,
    PictureGrid,
    StoredPicture,
    TableCell,
)
from fedra.reports.page_charts import Charts, class_accuracies, over_clients, over_rounds
from fedra.reports.page_numbers import title_of
from fedra.reports.record_groups import RunGroup
from fedra.reports.run_files import number, table_of
from fedra.reports.run_record import RunRecord

MOST_RUNS = 4
"""Number of settings that get figures of their own where one figure cannot hold several."""
LARGEST_PICTURE = 4 * 2**20
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
PHOTOS = "errors.png"
"""Ending of the pictures that show images of the evaluated data."""

ROUND_DYNAMICS = (
    ("preservation", "knowledge preservation", "points (%)", 100.0, "Local minus global accuracy, on all classes."),
    ("local_accuracy_mean", "accuracy of local models", "accuracy (%)", 100.0, "On the global test set."),
    (
        "forgetting",
        "forgetting",
        "points (%)",
        100.0,
        "Mean over classes of the best accuracy so far minus the current.",
    ),
    ("global_local_distance", "distance of local weights to global", "distance", 1.0, ""),
    ("local_local_distance", "distance between local weights", "distance", 1.0, ""),
    ("vector_length_mean", "length of class vectors", "length", 1.0, ""),
    ("server_step_mean", "step of the server rules", "relative to the length", 1.0, ""),
    ("server_turn_mean", "turn by the server rules", "degrees", 1.0, ""),
    ("nearest_cosine_max", "nearest class of another client", "largest cosine", 1.0, ""),
)
CLIENT_DYNAMICS: tuple[tuple[str, str, str, Any], ...] = (
    ("update_norm", "length of updates", "mean over clients", np.mean),
    ("train_loss", "spread of the training loss", "deviation over clients", np.std),
    ("proximal_loss", "proximal loss", "mean over clients", np.mean),
    ("proximal_cosine", "update and proximal gradient", "mean cosine", np.mean),
)


def build_dynamics(charts: Charts) -> PageSection | None:
    """Return what diagnostics recorded about training, as curves and heat maps."""
    figures = [
        charts.curves(title, ylabel, over_rounds(key, factor), caption=caption)
        for key, title, ylabel, factor, caption in ROUND_DYNAMICS
    ]
    figures += [
        charts.curves(title, ylabel, over_clients(key, measure)) for key, title, ylabel, measure in CLIENT_DYNAMICS
    ]
    known = [figure for figure in figures if figure is not None] + list(_class_maps(charts))
    if not known:
        return None
    return PageSection("dynamics", "Training dynamics", [*charts.legend(), FigureGrid(known)])


def _class_maps(charts: Charts) -> Iterator[PageFigure]:
    for group in charts.groups[:MOST_RUNS]:
        found = class_accuracies(group.runs[0])
        if found is not None:
            rounds, values = found
            title = "accuracy by class" + (f": {group.label}" if len(charts.groups) > 1 else "")
            yield charts.heat_map(title, values, rounds, "accuracy (%)", "class")


def build_classes(charts: Charts) -> PageSection | None:
    """Return confusion matrices of the final models."""
    figures = []
    for group in charts.groups[:MOST_RUNS]:
        run = next((run for run in group.runs if run.summary.get("confusion")), None)
        values = None if run is None else _square(run.summary["confusion"])
        if run is not None and values is not None:
            given = run.summary.get("classes")
            known = isinstance(given, list) and len(given) == len(values)
            names = [str(name) for name in (given if known else range(len(values)))]  # type: ignore[union-attr]
            figures.append(charts.matrix(f"confusion: {group.label}", values, names, f"Run {run.name}."))
    return PageSection("classes", "Classes", [FigureGrid(figures)]) if figures else None


def _square(value: Any) -> Any:
    try:
        found = np.array(value, dtype=float)
    except (ValueError, TypeError):
        return None
    return found if found.ndim == 2 and found.shape[0] == found.shape[1] > 0 and np.isfinite(found).all() else None


def build_clients(charts: Charts) -> PageSection | None:
    """Return the distribution of examples, participation and accuracies over clients."""
    figures: list[PageFigure | None] = []
    for file, key, title in (
        ("client-tests.jsonl", "accuracy", "global model on each client's classes"),
        ("personalized.jsonl", "accuracy", "personal models"),
        ("personalized.jsonl", "global_accuracy", "global model at the same clients"),
        ("recognition.jsonl", "personal_auroc", "recognition by personal models"),
        ("recognition.jsonl", "global_auroc", "recognition by the global model"),
    ):
        percent = key.endswith("accuracy")
        ylabel = "accuracy (%)" if percent else "AUROC"
        figures.append(charts.ranked(title, ylabel, _reader(file, key, 100.0 if percent else 1.0)))
    legend = charts.legend() if any(figures) else []
    run = next((run for group in charts.groups for run in group.runs if run.clients), None)
    if run is not None:
        sizes = {
            c: v
            for line in run.clients
            if (c := _whole(line.get("client"))) is not None and (v := number(line.get("examples"))) is not None
        }
        times = Counter(
            c for line in run.clients if (c := _whole(line.get("client"))) is not None and "dropped" not in line
        )
        order = sorted(sizes)
        note = f"Clients of {run.name} that took part, by number."
        figures.append(charts.bars("examples per client", "client", "examples", [sizes[c] for c in order], note))
        figures.append(charts.bars("rounds per client", "client", "rounds", [times[c] for c in order], note))
    known = [figure for figure in figures if figure is not None]
    table = _client_table(charts.groups)
    blocks: list[PageBlock] = [*([table] if table else []), *([*legend, FigureGrid(known)] if known else [])]
    return PageSection("clients", "Clients", blocks) if blocks else None


def _whole(value: object) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def _reader(file: str, key: str, factor: float) -> Any:
    def read(run: RunRecord) -> list[float]:
        values = (number(line.get(key)) for line in run.files.read_lines(file))
        return [factor * value for value in values if value is not None]

    return read


def _client_table(groups: Sequence[RunGroup]) -> DataTable | None:
    """Return mean, deviation over clients and worst decile of the final tests of clients, as means over seeds."""
    rows = []
    for group in groups:
        for key, name in (("personalized_accuracy", "personal models"), ("global_on_clients_accuracy", "global model")):
            cells = []
            for end in ("", "_std", "_worst_decile"):
                values = [v for run in group.counted if (v := number(run.summary.get(f"{key}{end}"))) is not None]
                mean = float(np.mean(values)) if values else None
                cells.append(TableCell("–" if mean is None else f"{100 * mean:.2f}", mean))
            if cells[0].order is not None:
                rows.append([TableCell(group.label, series=group.number), TableCell(name), *cells])
    headings = ["setting", "model", "accuracy (%)", "deviation over clients", "worst decile"]
    return DataTable(headings, rows, "Means over seeds.", numbers=2, name="client-tests") if rows else None


def build_evaluations(runs: Sequence[RunRecord], photos: bool) -> PageSection | None:
    """Return the records of `fedra eval`: tables by data set and protocol, ROC, histograms, worst errors."""
    tables: dict[tuple[str, str], dict[str, dict[str, str]]] = defaultdict(dict)
    pictures: list[tuple[RunRecord, StoredPicture]] = []
    for run in runs:
        for file in run.files.names("eval-*.json"):
            record = run.files.read_table(file) or {}
            for protocol, part in table_of(record.get("protocols")).items():
                part = table_of(part)
                data = str(record.get("data", file))
                tables[data, str(protocol)][run.name] = {k: str(v) for k, v in table_of(part.get("table")).items()}
                pictures += [(run, p) for p in _pictures(run, file, part, f"{protocol} on {data}", photos)]
    if not tables:
        return None
    blocks: list[PageBlock] = [_evaluation_table(*where, found) for where, found in tables.items()]
    shown = list(dict.fromkeys(run.name for run, _ in pictures))
    for name in shown[:MOST_RUNS]:
        own = [picture for run, picture in pictures if run.name == name]
        grid = PictureGrid(own)
        blocks.append(grid if len(shown) == 1 else Disclosure(f"Pictures of {name}", [grid], f"pictures-{name}"))
    if len(shown) > MOST_RUNS:
        blocks.append(Paragraph(f"Pictures of {len(shown) - MOST_RUNS} more runs are in their folders."))
    if photos and any(picture.title == TITLES[PHOTOS] for _, picture in pictures):
        blocks.append(Paragraph("The worst errors show images of the data: check that you may share them."))
    return PageSection("evaluations", "Evaluations", blocks)


TITLES = {
    "roc.svg": "ROC",
    "scores.svg": "scores",
    "cmc.svg": "CMC",
    PHOTOS: "worst errors",
    "confusion.svg": "confusion",
}


def _pictures(run: RunRecord, file: str, part: dict[str, Any], where: str, photos: bool) -> Iterator[StoredPicture]:
    given = part.get("pictures")
    for name in given if isinstance(given, list) else ():
        kind = KINDS.get(str(name)[-4:])
        if kind is None or (str(name).endswith(PHOTOS) and not photos):
            continue
        data = run.files.read_bytes(f"{file.removesuffix('.json')}-{name}", LARGEST_PICTURE)
        if data is not None:
            source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
            yield StoredPicture(source, TITLES.get(str(name), str(name)), where)


def _evaluation_table(data: str, protocol: str, found: dict[str, dict[str, str]]) -> DataTable:
    keys = list(dict.fromkeys(key for table in found.values() for key in table))
    names = list(found)
    headings = [f"{protocol} on {data}", *(names if len(names) > 1 else ["value"])]
    rows = [[TableCell(key), *(TableCell(found[name].get(key, "–")) for name in names)] for key in keys]
    return DataTable(headings, rows, sortable=False, name=f"eval-{protocol}-{data}", narrow=len(names) == 1)


PRIVACY_NAMES = {
    "epsilon": "epsilon",
    "delta": "delta",
    "unit": "what is protected",
    "level": "level",
    "relation": "neighboring data",
    "noise": "noise multiplier",
    "clip": "clipping norm",
    "rate": "sampling rate",
    "times": "releases",
    "accountant": "accountant",
    "trust": "who must be trusted",
    "covers": "covered",
    "not_covered": "not covered",
}


def build_privacy(charts: Charts, runs: Sequence[RunRecord]) -> PageSection | None:
    """Return what differential privacy the runs have, if any has."""
    found = {run.name: _privacy(run) for run in runs}
    private = {name: table for name, table in found.items() if table}
    if not private:
        return None
    sentences = [_privacy_sentence(name, table) for name, table in private.items()]
    without = [name for name, table in found.items() if not table]
    if without:
        sentences.append(
            f"Without differential privacy, so weights may reveal training examples: {', '.join(without)}."
        )
    keys = list(dict.fromkeys([*PRIVACY_NAMES, *(key for table in private.values() for key in table)]))
    rows = [
        [
            TableCell(PRIVACY_NAMES.get(key, title_of(key))),
            *(TableCell(write_plain(t.get(key))) for t in private.values()),
        ]
        for key in keys
        if any(key in table for table in private.values())
    ]
    table = DataTable(["guarantee", *private], rows, numbers=99, sortable=False, name="privacy")
    figures = [
        charts.curves("privacy spent", "epsilon", over_rounds("epsilon")),
        charts.curves("clipping norm", "norm", over_rounds("clip")),
        charts.curves("noise", "relative to the mean change", over_rounds("noise_share")),
    ]
    known = [figure for figure in figures if figure is not None]
    return PageSection(
        "privacy", "Privacy", [*map(Paragraph, sentences), table, *([FigureGrid(known)] if known else [])]
    )


def _privacy(run: RunRecord) -> dict[str, Any]:
    stated = table_of(run.summary.get("privacy"))
    epsilon = run.last("epsilon")
    return {"epsilon": epsilon, **stated} if epsilon is not None else stated


def _privacy_sentence(name: str, table: dict[str, Any]) -> str:
    delta = f", delta {write_plain(table['delta'])}" if "delta" in table else ""
    unit = f" for {table['unit']}" if table.get("unit") else ""
    if table.get("epsilon_if_secret") is not None:
        return f"{name}: no guarantee{unit}, because the noise can be recomputed from the seed."
    return f"{name}: epsilon {write_plain(table.get('epsilon'))}{delta}{unit}."


def write_plain(value: Any) -> str:
    """Write a value of a record of which only the type is known."""
    if isinstance(value, list):
        return ", ".join(map(write_plain, value)) or "none"
    found = number(value)
    if found is not None:
        return f"{found:.4g}" if isinstance(value, float) else f"{value:,}"
    return "–" if value is None else str(value)
