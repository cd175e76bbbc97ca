"""The demonstration of faces: from photographs to names and ONNX, every step one of fedra's own commands."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedra.cli.app import app, tell
from fedra.core.random import key
from fedra.data import Transform
from fedra.errors import ConfigError
from fedra.experiment.evaluate_model import evaluate_on
from fedra.models import Embedder, build
from fedra.storage.trained_model import FACES
from fedra.writing import write_atomically

MARK = ".fedra-demo"
"""What a demonstration writes first: a folder without it is somebody else's, and never replaced."""
NETWORK: dict[str, Any] = {"name": "mobilefacenet-tiny", "embedding": 64}
PIXELS: dict[str, Any] = {"name": "logistic"}
"""A network whose features are the pixels themselves."""
SIDE = 32
COLUMNS = ("accuracy", "AUROC", "TAR at FAR 0.01")


@dataclass(frozen=True)
class Scale:
    """How many people there are of each kind, how many photographs of them, and how long is trained."""

    clients: int = 10
    people: int = 120
    images: int = 10
    strangers: int = 40
    strangers_images: int = 8
    staff: int = 8
    staff_images: int = 8
    rounds: int = 25


def configuration(folder: Path, rounds: int) -> dict[str, Any]:
    """The federation: a client for each folder of crops, whose people are nobody else's business."""
    crops = folder.resolve() / "crops"
    return {
        "rounds": rounds,
        "data": {
            "name": "faces",
            "folders": [str(crops / "clients")],
            "groups": "level",
            "size": SIDE,
            "verify": str(crops / "strangers"),
        },
        "partition": {"name": "natural", "clients": 0},
        "model": NETWORK,
        "local": {"batch": 12, "lr": 0.1, "lr_decay": 0.95, "momentum": 0.9, "weight_decay": 5e-4},
        "algorithm": {"name": "fedgc", "margin": {"name": "cosface", "scale": 16.0, "margin": 0.2}},
        "cohort": {"fraction": 1.0},
        "evaluation": {"every": 5},
        "runner": {"name": "processes"},
    }


def walk(folder: Path, console: Console, scale: Scale | None = None) -> None:
    """Walk the whole road in `folder`; each step prints the command that it is."""
    scale = scale or Scale()
    _make_anew(folder)
    road = Road(folder, console)
    tell(console, f"\nFaces of people who do not exist, {scale.people} of them with {scale.clients} clients.")
    road.photograph(scale)
    road.train(scale.rounds)
    road.judge()
    road.recognise()
    road.hand_on()
    tell(
        console,
        f"\neverything is in {folder}: photos, crops, the run with its evaluation, staff.gallery, face.onnx",
    )


def _make_anew(folder: Path) -> None:
    """An empty folder in the place of an earlier demonstration's."""
    if folder.exists():
        if not (folder / MARK).is_file():
            raise ConfigError(f"'{folder}' is there and no demonstration made it: choose another folder with --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


@dataclass(frozen=True)
class Road:
    """The stages of the road, which find in `folder` what the stages before them left."""

    folder: Path
    console: Console

    @property
    def model(self) -> Path:
        """The run's folder."""
        return self.folder / "run"

    def step(self, *words: str | Path | int) -> None:
        """Show a command of fedra and run it."""
        given = [str(word) for word in words]
        self.console.print(Text(f"\n$ {shlex.join(['fedra', *given])}", style="bold"), soft_wrap=True)
        app(args=given, standalone_mode=False)

    def title(self, text: str) -> None:
        self.console.rule(text, align="left")

    def photograph(self, scale: Scale) -> None:
        self.title("Photographs, and the aligned crops of the faces in them")
        newcomers = scale.people + scale.strangers
        of_strangers = ("--first-person", scale.people)
        of_staff = ("--first-person", newcomers)
        new = (*of_staff, "--first-image", scale.staff_images)
        self._aligned("clients", scale.people, scale.images, "--clients", scale.clients)
        self._aligned("strangers", scale.strangers, scale.strangers_images, *of_strangers)
        self._aligned("staff", scale.staff, scale.staff_images, *of_staff)
        self._aligned("door", scale.staff + 1, 1, *new)

    def _aligned(self, name: str, people: int, images: int, *more: str | int) -> None:
        photos, crops = self.folder / "photos" / name, self.folder / "crops" / name
        self.step("faces", "paint", photos, "--people", people, "--images", images, "--size", "96x128", *more)
        self.step("faces", "align", photos, crops, "--points", photos / "points.json", "--size", SIDE)

    def train(self, rounds: int) -> None:
        self.title("Federated training by FedGC: photographs stay with their clients")
        file, text = self.folder / "faces.toml", tomli_w.dumps(configuration(self.folder, rounds))
        write_atomically(file, text.encode())
        tell(self.console, f"{file} says:\n\n{text}")
        self.step("run", file, "--out", self.model)

    def judge(self) -> None:
        self.title("Two photographs of strangers: one person or two?")
        strangers = self.folder / "crops" / "strangers"
        table = Table(title="pairs of strangers told apart", title_justify="left")
        table.add_column("by")
        for column in COLUMNS:
            table.add_column(column, justify="right")
        for name, network in (("raw pixels", PIXELS), ("the untrained network", NETWORK)):
            found = evaluate_on(_untrained(network), str(strangers), ("verification",))
            _add(table, name, found.outcomes["verification"].table)
        protocols = ("--protocol", "verification", "--protocol", "identification")
        self.step("eval", self.model, "--on", strangers, *protocols)
        record = json.loads((self.model / "eval-strangers.json").read_text(encoding="utf-8"))
        _add(table, "the trained network", record["protocols"]["verification"]["table"])
        self.console.print(table)

    def recognise(self) -> None:
        self.title("A gallery: enrol the staff, then ask who stands at the door")
        model, gallery = self.model, self.folder / "staff.gallery"
        self.step("faces", "calibrate", "--model", model, "--on", self.folder / "crops" / "strangers", "--far", "0.01")
        self.step("faces", "enroll", gallery, self.folder / "crops" / "staff", "--model", model)
        everybody = sorted((self.folder / "crops" / "door").rglob("*.jpg"))
        for photograph in (*everybody[:3], everybody[-1]):
            self.step("faces", "identify", photograph, "--gallery", gallery, "--top", 3)
        tell(self.console, f"(the last of them, {everybody[-1].parent.name}, is not enrolled)")

    def hand_on(self) -> None:
        self.title("The network for other programs")
        if find_spec("onnx") is None or find_spec("onnxruntime") is None:
            tell(self.console, "the export is left out, for it needs more: pip install 'fedra[onnx]'")
            return
        self.step("export", self.model, self.folder / "face.onnx")


def _untrained(network: dict[str, Any]) -> Embedder:
    """A network as a run of seed 0 begins with it."""
    shape = (3, SIDE, SIDE)
    settings = {field: value for field, value in network.items() if field != "name"}
    return Embedder(
        build(network["name"], shape, 1, seed=key(0, "model"), **settings), Transform(FACES, FACES).prepare, shape
    )


def _add(table: Table, name: str, figures: dict[str, str]) -> None:
    table.add_row(name, *(figures.get(column, "") for column in COLUMNS))
