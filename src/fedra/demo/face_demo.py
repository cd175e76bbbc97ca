"""The demonstration on faces: from photographs to names, every step with the command that does the same."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedra.console import tell
from fedra.core.random import key
from fedra.data import Transform
from fedra.demo.demo_folder import make_anew
from fedra.demo.door import Answer, ask, door_table
from fedra.demo.warm_start import EMBEDDING, NETWORK, SIDE, WEIGHTS
from fedra.evaluation.results import ProtocolResult
from fedra.experiment.evaluate_model import evaluate_on
from fedra.experiment.export import export
from fedra.experiment.run import run
from fedra.faces import FaceRecognizer, Gallery, KnownPoints, align_folder, calibrate
from fedra.faces.synthetic import PhotographSettings, SyntheticFaces, write_photographs
from fedra.models import Embedder, build
from fedra.runners.base import threads
from fedra.storage.evaluation_record import write_evaluation
from fedra.storage.trained_model import FACES, embedder_of_run, embedder_of_weights
from fedra.writing import write_atomically

CAMERA = {"pose": 0.8, "light": 0.7, "occlusion": 0.6, "noise": 0.3}
"""How the demo's photographs vary: harder light than the portraits of the warm start, and glasses, hands or scarves in
front of one face in three, of which the portraits have none."""
PHOTOGRAPH = PhotographSettings(height=120, width=160)
FAR = 0.005
COLUMNS = ("accuracy", "AUROC", "TAR at FAR 0.01")


@dataclass(frozen=True)
class Scale:
    """How many people there are of each kind, how many photographs of them, and how long is trained."""

    clients: int = 10
    people: int = 400
    images: int = 8
    unseen: int = 40
    unseen_images: int = 8
    enrolled: int = 6
    enrolled_images: int = 8
    unknown: int = 4
    rounds: int = 8


@dataclass(frozen=True)
class FaceDemoResult:
    """What the demonstration found.

    Attributes:
        before: Accuracy on pairs of unseen people before federated training.
        after: The same after it.
        answers: What the gallery says of everybody at the door.
    """

    before: float
    after: float
    answers: tuple[Answer, ...]


def recognize_faces(
    out: Path, console: Console, *, scale: Scale | None = None, seed: int = 0, world: int = 0
) -> FaceDemoResult:
    """Paint people, train on their photographs in a federation, and recognize others at a door.

    Args:
        out: A folder that is new or was made by an earlier demonstration.
        console: Where tables and progress go.
        scale: How many people and rounds.
        seed: Seeds the training.
        world: Seeds the people and their photographs; those of world 1 are known to the warm start.

    Returns:
        The accuracies before and after training, and the answers at the door.
    """
    make_anew(out)
    demo = FaceDemo(out, console, scale or Scale(), seed, world)
    with threads(1):  # the parts that take long have a process or a thread for each core
        demo.photograph()
        demo.train()
        before, after = demo.evaluate()
        answers = demo.identify()
        demo.export()
    demo.say_what_next()
    return FaceDemoResult(before, after, answers)


@dataclass(frozen=True)
class FaceDemo:
    """The steps, each of which finds in `folder` what the steps before it left."""

    folder: Path
    console: Console
    scale: Scale
    seed: int = 0
    world: int = 0

    @property
    def model(self) -> Path:
        """The run's folder."""
        return self.folder / "run"

    @property
    def unseen(self) -> Path:
        """Crops of people whom training does not see."""
        return self.folder / "crops" / "unseen"

    def title(self, text: str) -> None:
        self.console.print()
        self.console.rule(text, align="left")

    def show(self, *words: str | Path | float) -> None:
        """Print the command that does what comes next."""
        line = shlex.join(["fedra", *map(str, words)])
        self.console.print(Text(f"$ {line}", style="bold"), soft_wrap=True)

    def photograph(self) -> None:
        scale = self.scale
        self.title("Photographs of people who do not exist, and the aligned crops of their faces")
        first_unseen = scale.people
        first_enrolled = scale.people + scale.unseen
        self._crops("clients", scale.people, scale.images, clients=scale.clients)
        self._crops("unseen", scale.unseen, scale.unseen_images, first_person=first_unseen)
        self._crops("staff", scale.enrolled, scale.enrolled_images, first_person=first_enrolled)
        at_door = scale.enrolled + scale.unknown
        self._crops("door", at_door, 1, first_person=first_enrolled, first_image=scale.enrolled_images)

    def _crops(
        self, name: str, people: int, images: int, *, clients: int = 0, first_person: int = 0, first_image: int = 0
    ) -> None:
        photos, crops = self.folder / "photos" / name, self.folder / "crops" / name
        given = {
            "--clients": clients,
            "--first-person": first_person,
            "--first-image": first_image,
            "--seed": self.world,
        }
        more = [word for option, value in given.items() if value for word in (option, value)]
        camera = [word for knob, strength in CAMERA.items() for word in ("--strength", f"{knob}={strength:g}")]
        size = f"{PHOTOGRAPH.height}x{PHOTOGRAPH.width}"
        self.show("faces", "paint", photos, "--people", people, "--images", images, "--size", size, *more, *camera)
        write_photographs(
            photos,
            SyntheticFaces(self.world, knobs=CAMERA),
            identities=people,
            images=images,
            first_identity=first_person,
            first_image=first_image,
            clients=clients,
            settings=PHOTOGRAPH,
        )
        self.show("faces", "align", photos, crops, "--points", photos / "points.json", "--size", SIDE)
        align_folder(photos, crops, KnownPoints(photos / "points.json"), size=SIDE, console=self.console)

    def configuration(self) -> dict[str, Any]:
        """The federation: a client for each folder of crops, which stay there."""
        return {
            "seed": self.seed,
            "rounds": self.scale.rounds,
            "data": {
                "name": "faces",
                "folders": [str(self.folder.resolve() / "crops" / "clients")],
                "groups": "level",
                "size": SIDE,
                "verify": str(self.unseen.resolve()),
                "augment": ["flip", "cutout"],
            },
            "partition": {"name": "natural", "clients": 0},
            "model": {"name": NETWORK, "embedding": EMBEDDING, "weights": str(WEIGHTS)},
            "local": {"batch": 32, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine"},
            "algorithm": {"name": "fedgc", "margin": {"name": "cosface", "scale": 24.0, "margin": 0.25}},
            "cohort": {"fraction": 1.0},
            "evaluation": {"every": 2},
            "runner": {"name": "processes"},
        }

    def train(self) -> None:
        scale = self.scale
        self.title(
            f"Federated training by FedGC: {scale.clients} clients with {scale.people // scale.clients} people each"
        )
        file = self.folder / "faces.toml"
        write_atomically(file, tomli_w.dumps(self.configuration()).encode())
        self.show("run", file, "--out", self.model)
        run(file, out=self.model, console=self.console)

    def evaluate(self) -> tuple[float, float]:
        """The accuracies on pairs of unseen people before and after training."""
        self.title("Two photographs of unseen people: one person or two?")
        self.show("eval", self.model, "--on", self.unseen)
        shape = (3, SIDE, SIDE)
        started = embedder_of_weights(WEIGHTS, NETWORK, shape=shape, embedding=EMBEDDING)
        trained = evaluate_on(embedder_of_run(self.model), str(self.unseen), ("verification",))
        write_evaluation(trained, self.model, self.console, model=self.model)
        results = {
            "the untrained network": self._verified(_untrained(shape)),
            "the warm start, which knows portraits": self._verified(started),
            "after federated training": trained.outcomes["verification"],
        }
        table = Table(header_style="bold")
        table.add_column("network")
        for column in COLUMNS:
            table.add_column(column, justify="right")
        for name, result in results.items():
            table.add_row(name, *(result.table.get(column, "") for column in COLUMNS))
        self.console.print(table)
        _, before, after = (_accuracy(result) for result in results.values())
        return before, after

    def _verified(self, embedder: Embedder) -> ProtocolResult:
        return evaluate_on(embedder, str(self.unseen), ("verification",)).outcomes["verification"]

    def identify(self) -> tuple[Answer, ...]:
        """Enroll the staff, then ask who is at the door."""
        scale, path = self.scale, self.folder / "staff.gallery"
        self.title(f"A gallery of {scale.enrolled} people, and {scale.enrolled + scale.unknown} people at the door")
        recognizer = FaceRecognizer(self.model)
        self.show("faces", "calibrate", "--model", self.model, "--on", self.unseen, "--far", FAR)
        calibrate(recognizer, self.unseen, FAR)
        staff, door = self.folder / "crops" / "staff", self.folder / "crops" / "door"
        self.show("faces", "enroll", path, staff, "--model", self.model)
        gallery = Gallery.open(path, recognizer)
        gallery.enroll_folder(staff)
        self.show("faces", "identify", door, "--gallery", path)
        answers = tuple(ask(gallery, photo) for photo in sorted(door.rglob("*.jpg")))
        self.console.print(door_table(answers))
        right = sum(answer.right for answer in answers)
        tell(self.console, f"{right} of {len(answers)} answers are right; everybody at the door is on a new photograph")
        return answers

    def export(self) -> None:
        self.title("The network for other programs")
        if not can_export():
            tell(self.console, "the export to ONNX needs more: pip install 'fedra[onnx]'")
            return
        self.show("export", self.model, self.folder / "face.onnx")
        done = export(self.model, self.folder / "face.onnx", console=self.console)
        tell(self.console, f"at most {done.difference:.1g} from PyTorch; the model card is {done.card}")

    def say_what_next(self) -> None:
        folder, files = self.folder, "photos, crops, faces.toml, run with its evaluation, staff.gallery"
        tell(self.console, f"\nEverything is in {folder}: {files}{', face.onnx' if can_export() else ''}.")
        tell(self.console, "Look next at docs/faces.md, which goes the same way with your own photographs, or try:")
        tell(
            self.console,
            f"  fedra run {folder}/faces.toml algorithm.name=fedpe --out {folder}/fedpe   # another method",
        )
        tell(self.console, f"  fedra compare {folder}/run {folder}/fedpe")


def can_export() -> bool:
    """Whether the extra onnx is installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def _untrained(shape: tuple[int, int, int]) -> Embedder:
    """The network as a run of seed 0 without a warm start would begin."""
    module = build(NETWORK, shape, 1, seed=key(0, "model"), embedding=EMBEDDING)
    return Embedder(module, Transform(FACES, FACES).prepare, shape)


def _accuracy(result: ProtocolResult) -> float:
    found = result.figures["accuracy"]
    assert isinstance(found, float)
    return found
