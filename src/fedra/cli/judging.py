"""Commands that judge a model: eval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import app, tell, wide_console
from fedra.cli.faces import Device, Input, Json, Network

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedra.evaluation.results import ModelEvaluation, Protocol, ProtocolResult
    from fedra.models import Embedder
    from fedra.models.embedder import Flip

SHOWN_CLASSES = 30
"""The screen shows so many classes, the worst first; the record has them all."""


@app.command("eval", epilog="Examples: `fedra eval runs/faces --on lfw` · `fedra eval runs/faces --on crops "
             "--protocol identification` · `fedra eval net.pt --network mobilefacenet --on cfp_fp.bin`")  # fmt: skip
def evaluate(
    model: Annotated[
        Path,
        typer.Argument(
            help="Folder of a finished run, or a weight file; for MegaFace also a folder of feature files.",
            metavar="RUN|FILE",
        ),
    ],
    on: Annotated[
        str,
        typer.Option(
            help="The run's own test data, a data set with its fields, an InsightFace .bin file, a folder with LFW's "
            "pairs.txt or with a folder of crops for each person, or a folder of IJB-B, IJB-C or MegaFace.",
            metavar="test|NAME[:...]|PATH",
        ),
    ] = "test",
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="verification, identification, open-set; of the run's own data also classification and clients. May "
            "be repeated.",
            show_default="verification where there are pairs, else classification",
        ),
    ] = None,
    flip: Annotated[str, typer.Option(help="Mirror images too: none, sum or concatenate.")] = "none",
    pairs: Annotated[int | None, typer.Option(help="Pairs to draw where a set has none.", min=2)] = None,
    seed: Annotated[int, typer.Option(help="Seeds what is drawn at random.", min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the record and pictures.", show_default="the model's")
    ] = None,
    network: Network = None,
    input: Input = "112x112",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Judge a model by the field's protocols: a table, a record and pictures."""
    from rich.console import Console

    from fedra.errors import ConfigError
    from fedra.experiment.evaluate_model import check_protocols, evaluate_on, evaluate_run_test
    from fedra.storage.evaluation_record import TEST, write_evaluation

    chosen, mirrored, aside = check_protocols(protocol or ()), _flip(flip), Console(stderr=True)
    if on == TEST:
        if network is not None:
            raise ConfigError("a weight file has no test data of its own: name what to evaluate --on")
        found = evaluate_run_test(model, chosen, flip=mirrored, pairs=pairs, seed=seed, device=device, console=aside)
    elif (benchmark := _benchmark(on)) is not None:
        found = _on_benchmark(
            model, lambda: _embedder(model, network, input, mirrored, device), benchmark, chosen, seed, aside
        )
    else:
        embedder = _embedder(model, network, input, mirrored, device)
        found = evaluate_on(embedder, on, chosen, pairs=pairs, seed=seed, console=aside)
    settings: dict[str, object] = {"flip": mirrored, "pairs": pairs, "seed": seed}
    settings |= {} if network is None else {"network": network, "input": input}
    path = write_evaluation(
        found, out or (model.parent if model.is_file() else model), aside, model=model, settings=settings
    )
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"))
        return
    console = wide_console()
    for name, outcome in found.outcomes.items():
        tell(console, f"{name} on {found.data}")
        for table in _tables(outcome):
            console.print(table)
    tell(console, f"everything is in {path}")


def _benchmark(on: str) -> Path | None:
    """The folder of IJB-B, IJB-C or MegaFace, here or under the data root, if it is one."""
    from fedra.data import data_root
    from fedra.faces.benchmarks.ijb_folder import is_ijb
    from fedra.faces.benchmarks.megaface_lists import is_megaface

    places = (Path(on).expanduser(), data_root() / on)
    return next((place for place in places if place.is_dir() and (is_ijb(place) or is_megaface(place))), None)


def _on_benchmark(
    model: Path,
    embedder: Callable[[], Embedder],
    folder: Path,
    protocols: Sequence[Protocol],
    seed: int,
    console: Console,
) -> ModelEvaluation:
    from fedra.faces.benchmarks.ijb import evaluate_ijb
    from fedra.faces.benchmarks.ijb_folder import is_ijb
    from fedra.faces.benchmarks.megaface import evaluate_megaface, is_feature_folder

    if is_ijb(folder):
        return evaluate_ijb(embedder(), folder, protocols, console=console)
    features = model if is_feature_folder(model) else embedder()
    return evaluate_megaface(features, folder, protocols, seed=seed, console=console)


def _flip(word: str) -> Flip:
    from typing import get_args

    from fedra.errors import ConfigError, nearest
    from fedra.models.embedder import Flip

    known: tuple[Flip, ...] = get_args(Flip)
    if word not in known:
        raise ConfigError(f"--flip cannot be '{word}': {nearest(word, known)}")
    return next(flip for flip in known if flip == word)


def _embedder(model: Path, network: str | None, input: str, flip: Flip, device: str) -> Embedder:
    from fedra.config.names import read_word
    from fedra.errors import ConfigError
    from fedra.faces.recognition.model_source import read_size
    from fedra.storage.trained_model import embedder_of_run, embedder_of_weights

    if network is None:
        if model.is_file():
            raise ConfigError(f"'{model}' is a file: name its network (--network), or give a run's folder")
        return embedder_of_run(model, fit="crop", flip=flip, device=device)
    name, settings = read_word(network)
    return embedder_of_weights(
        model, name, shape=(3, *read_size(input)), fit="crop", flip=flip, device=device, **settings
    )


def _tables(outcome: ProtocolResult) -> Iterator[Table]:
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in outcome.table.items():
        table.add_row(name, value)
    yield table
    classes = outcome.figures.get("class_accuracy")
    if isinstance(classes, dict):
        yield _class_table(classes)


def _class_table(classes: dict[str, float]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    many = len(classes) > SHOWN_CLASSES
    table = Table(title=f"the {SHOWN_CLASSES} worst of {len(classes)} classes" if many else None, title_justify="left")
    table.add_column("class")
    table.add_column("accuracy", justify="right")
    worst = sorted(classes, key=classes.__getitem__)[:SHOWN_CLASSES] if many else classes
    for name in worst:
        table.add_row(escape(name), f"{classes[name]:.2%}")
    return table
