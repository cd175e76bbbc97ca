"""The faces part of the demo: from photos to names, each step printed as the command that does the same."""

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
from fedra.demo.demo_folder import create_demo_folder
from fedra.demo.door import Answer, answer_table, identify_photo
from fedra.demo.warm_start import EMBEDDING, NETWORK, SIDE, WEIGHTS
from fedra.evaluation.results import ProtocolResult
from fedra.experiment.evaluate_model import evaluate_on
from fedra.experiment.export import export
from fedra.experiment.run import run
from fedra.faces import FaceRecognizer, Gallery, KnownPoints, align_folder, calibrate
from fedra.faces.synthetic import PhotoSettings, SyntheticFaces, write_photos
from fedra.models import Embedder, build
from fedra.runners.base import threads
from fedra.storage.evaluation_record import write_evaluation
from fedra.storage.trained_model import FACES, load_embedder, load_embedder_weights
from fedra.writing import write_atomically

CAMERA = {"pose": 0.8, "light": 0.7, "occlusion": 0.6, "noise": 0.3}
"""How the demo's photos vary: the light is harder than in the portraits of the warm start, and glasses, a hand or a
scarf cover part of one face in three, which the portraits never have."""
PHOTO_SIZE = PhotoSettings(height=120, width=160)
FAR = 0.005
COLUMNS = ("accuracy", "AUROC", "TAR at FAR 0.01")


@dataclass(frozen=True)
class Scale:
    """The numbers of people and photos, and the number of rounds."""

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
    """The results of the face demo.

    Attributes:
        before: Verification accuracy on unseen identities before federated training.
        after: Verification accuracy on unseen identities after federated training.
        answers: The gallery's answers for the people at the door.
    """

    before: float
    after: float
    answers: tuple[Answer, ...]


def recognize_faces(
    out: Path, console: Console, *, scale: Scale | None = None, seed: int = 0, world: int = 0
) -> FaceDemoResult:
    """Draw synthetic people, train on their photos with federated learning, and identify other people at a door.

    Args:
        out: Output folder, which must be new or made by an earlier demo.
        console: Where tables and progress are printed.
        scale: The numbers of people, photos and rounds; those of the full demo if None.
        seed: Seed of the training.
        world: Seed of the people and their photos; the warm start was trained on people of world 1.

    Returns:
        The accuracies before and after training, and the gallery's answers.

    Example:
        >>> from rich.console import Console
        >>> recognize_faces(Path("runs/faces"), Console(), seed=1)  # doctest: +SKIP
    """
    create_demo_folder(out)
    demo = FaceDemo(out, console, scale or Scale(), seed, world)
    with threads(1):  # the slow steps already use one process or thread per core
        demo.make_photos()
        demo.train()
        before, after = demo.evaluate()
        answers = demo.identify()
        demo.export()
    demo.print_next_steps()
    return FaceDemoResult(before, after, answers)


@dataclass(frozen=True)
class FaceDemo:
    """The steps of the demo; each one reads from `folder` what earlier steps wrote."""

    folder: Path
    console: Console
    scale: Scale
    seed: int = 0
    world: int = 0

    @property
    def model(self) -> Path:
        """The folder of the training run."""
        return self.folder / "run"

    @property
    def unseen(self) -> Path:
        """The crops of the unseen identities."""
        return self.folder / "crops" / "unseen"

    def _print_title(self, text: str) -> None:
        self.console.print()
        self.console.rule(text, align="left")

    def _print_command(self, *words: str | Path | float) -> None:
        """Print the command that does the next step."""
        line = shlex.join(["fedra", *map(str, words)])
        self.console.print(Text(f"$ {line}", style="bold"), soft_wrap=True)

    def make_photos(self) -> None:
        scale = self.scale
        self._print_title("Photos of synthetic people, and aligned crops of their faces")
        first_unseen = scale.people
        first_enrolled = scale.people + scale.unseen
        self._make_crops("clients", scale.people, scale.images, clients=scale.clients)
        self._make_crops("unseen", scale.unseen, scale.unseen_images, first_person=first_unseen)
        self._make_crops("staff", scale.enrolled, scale.enrolled_images, first_person=first_enrolled)
        at_door = scale.enrolled + scale.unknown
        self._make_crops("door", at_door, 1, first_person=first_enrolled, first_image=scale.enrolled_images)

    def _make_crops(
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
        size = f"{PHOTO_SIZE.height}x{PHOTO_SIZE.width}"
        self._print_command(
            "faces", "paint", photos, "--people", people, "--images", images, "--size", size, *more, *camera
        )
        write_photos(
            photos,
            SyntheticFaces(self.world, knobs=CAMERA),
            identities=people,
            images=images,
            first_identity=first_person,
            first_image=first_image,
            clients=clients,
            settings=PHOTO_SIZE,
        )
        self._print_command("faces", "align", photos, crops, "--points", photos / "points.json", "--size", SIDE)
        align_folder(photos, crops, KnownPoints(photos / "points.json"), size=SIDE, console=self.console)

    def configuration(self) -> dict[str, Any]:
        """The configuration of the training run, with one client per folder of crops."""
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
        self._print_title(
            f"Federated training with FedGC: {scale.clients} clients with {scale.people // scale.clients} people each"
        )
        file = self.folder / "faces.toml"
        write_atomically(file, tomli_w.dumps(self.configuration()).encode())
        self._print_command("run", file, "--out", self.model)
        run(file, out=self.model, console=self.console)

    def evaluate(self) -> tuple[float, float]:
        """Return the verification accuracies on unseen identities before and after training."""
        self._print_title("Verification: do two photos of unseen identities show the same person?")
        self._print_command("eval", self.model, "--on", self.unseen)
        shape = (3, SIDE, SIDE)
        started = load_embedder_weights(WEIGHTS, NETWORK, shape=shape, embedding=EMBEDDING)
        trained = evaluate_on(load_embedder(self.model), str(self.unseen), ("verification",))
        write_evaluation(trained, self.model, self.console, model=self.model)
        results = {
            "untrained network": self._verify_unseen(_untrained(shape)),
            "warm start (portraits only)": self._verify_unseen(started),
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

    def _verify_unseen(self, embedder: Embedder) -> ProtocolResult:
        return evaluate_on(embedder, str(self.unseen), ("verification",)).outcomes["verification"]

    def identify(self) -> tuple[Answer, ...]:
        """Enroll the staff, then identify the people at the door."""
        scale, path = self.scale, self.folder / "staff.gallery"
        self._print_title(
            f"Identification: {scale.enrolled} people enrolled, {scale.enrolled + scale.unknown} people at the door"
        )
        recognizer = FaceRecognizer(self.model)
        self._print_command("faces", "calibrate", "--model", self.model, "--on", self.unseen, "--far", FAR)
        calibrate(recognizer, self.unseen, FAR)
        staff, door = self.folder / "crops" / "staff", self.folder / "crops" / "door"
        self._print_command("faces", "enroll", path, staff, "--model", self.model)
        gallery = Gallery.open(path, recognizer)
        gallery.enroll_folder(staff)
        self._print_command("faces", "identify", door, "--gallery", path)
        answers = tuple(identify_photo(gallery, photo) for photo in sorted(door.rglob("*.jpg")))
        self.console.print(answer_table(answers))
        correct = sum(answer.is_correct for answer in answers)
        tell(self.console, f"{correct} of {len(answers)} answers are correct; none of the photos was enrolled")
        return answers

    def export(self) -> None:
        self._print_title("Export to ONNX")
        if not can_export():
            tell(self.console, "skipped, because the onnx extra is not installed: pip install 'fedra[onnx]'")
            return
        self._print_command("export", self.model, self.folder / "face.onnx")
        done = export(self.model, self.folder / "face.onnx", console=self.console)
        tell(self.console, f"outputs within {done.difference:.1g} of PyTorch; model card in {done.card}")

    def print_next_steps(self) -> None:
        folder, files = self.folder, "photos, crops, faces.toml, run (with its evaluation), staff.gallery"
        tell(self.console, f"\nEverything is in {folder}: {files}{', face.onnx' if can_export() else ''}.")
        tell(self.console, "See docs/faces.md for the same steps with your own photos, or try:")
        tell(
            self.console,
            f"  fedra run {folder}/faces.toml algorithm.name=fedpe --out {folder}/fedpe   # another method",
        )
        tell(self.console, f"  fedra compare {folder}/run {folder}/fedpe")


def can_export() -> bool:
    """Whether the onnx extra is installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def _untrained(shape: tuple[int, int, int]) -> Embedder:
    """Return the initial network of a run with seed 0 and no warm start."""
    module = build(NETWORK, shape, 1, seed=key(0, "model"), embedding=EMBEDDING)
    return Embedder(module, Transform(FACES, FACES).prepare, shape)


def _accuracy(result: ProtocolResult) -> float:
    found = result.metrics["accuracy"]
    assert isinstance(found, float)
    return found
