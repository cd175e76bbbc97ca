"""A fuzzing campaign: `make fuzz`, or `python tests/fuzz/fuzz_campaign.py --help`.

Every target is run by turns in a process of its own, whose memory is bounded. An input that fails is saved with a
report under .fuzz/failures/TARGET, one for each kind of failure; an input that ends or hangs the process is saved too,
and the target goes on. With atheris, inputs that reach new code are kept under .fuzz/corpus and mutated further;
without it (`--engine hypothesis`), hypothesis draws mutations of the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ENGINES = ("atheris", "hypothesis")
ROOT = Path(__file__).parent.parent.parent
WORK = ROOT / ".fuzz"
PAUSE = 0.1
GRACE = 3.0
"""How many time limits the parent waits for an input before it kills the process."""
NEVER = 10**6
"""Seconds of libFuzzer's own limit, which counts the time that a busy machine gives to others."""
WAITING = 300.0
"""Seconds after which an input that takes no processor time counts as hanging."""


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of the whole campaign")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0] if find_spec("atheris") else ENGINES[1])
    parser.add_argument(
        "--repeat", type=Path, help="a saved input: read it again with its target, and show what happens"
    )
    parser.add_argument("--list", action="store_true", help="list the targets")
    return parser.parse_args(words)


@dataclass
class Turn:
    """What the processes of one target did."""

    name: str
    folder: Path
    inputs: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    @property
    def current(self) -> Path:
        return self.folder / "current"

    def save(self, kind: str, data: bytes, report: str) -> None:
        """Save the first input of a kind of failure."""
        from fuzz_oracle import digest

        self.failures[kind] += 1
        if self.failures[kind] == 1:
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"{''.join(c if c.isalnum() else '-' for c in kind)[:60]}-{digest(data)}"
            (self.folder / name).write_bytes(data)
            (self.folder / f"{name}.txt").write_text(report, encoding="utf-8", errors="replace")
            print(f"\n{self.name}: {kind}: .fuzz/failures/{self.name}/{name}", flush=True)

    def write(self) -> None:
        """Tell the parent how far this process is."""
        self.state.write_text(json.dumps([self.inputs, self.failures]))

    def read(self) -> None:
        """Read what a process that has ended did."""
        if self.state.is_file():
            self.inputs, failures = json.loads(self.state.read_text())
            self.failures = Counter(failures)


def run_target(turn: Turn, seconds: float, seed: int, engine: str) -> None:
    """In a process of its own: mutate and read until the time is over."""
    from fuzz_mutation import mutate
    from fuzz_oracle import limit_memory
    from fuzz_targets import all_targets

    target = all_targets()[turn.name]
    warnings.simplefilter("ignore")
    end = time.monotonic() + seconds
    with target.session() as examine:

        def attempt(data: bytes) -> None:
            turn.current.write_bytes(data)
            failure = examine(data)
            turn.inputs += 1
            if failure is not None:
                turn.save(failure.name, data, failure.report)
            if failure is not None or turn.inputs % 50 == 0:
                turn.write()
            if time.monotonic() > end:
                turn.write()
                os._exit(0)

        for data in (*target.seeds, *target.corpus):
            attempt(data)
        limit_memory()
        if engine == "atheris":
            _run_atheris(turn, attempt, lambda data, chance: mutate(data, target.seeds, target.form, chance), seed)
        else:
            _run_hypothesis(attempt, target.seeds + target.corpus, seed, mutate, target)


def _run_atheris(
    turn: Turn, attempt: Callable[[bytes], None], change: Callable[[bytes, random.Random], bytes], seed: int
) -> None:
    import atheris
    from fuzz_targets import all_targets

    corpus = WORK / "corpus" / turn.name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(all_targets()[turn.name].seeds):
        (corpus / f"seed-{number}").write_bytes(data)

    def custom(data: bytes, largest: int, chance: int) -> bytes:
        draw = random.Random(chance)
        return (atheris.Mutate(data, largest) if draw.random() < 0.2 else change(data, draw))[:largest]

    options = [
        f"-seed={seed + 1}",
        "-max_len=65536",
        f"-timeout={NEVER}",
        "-rss_limit_mb=0",
        "-verbosity=0",
        "-print_final_stats=0",
    ]
    atheris.Setup(["fuzz", *options, str(corpus)], attempt, custom_mutator=custom)
    atheris.Fuzz()


def _run_hypothesis(attempt: Callable[[bytes], None], seeds: list[bytes], seed: int, mutate, target) -> None:  # type: ignore[no-untyped-def]
    import hypothesis
    from hypothesis import strategies

    for turn in range(seed, sys.maxsize):

        @hypothesis.seed(turn)
        @hypothesis.settings(
            max_examples=500,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(strategies.sampled_from(seeds), strategies.randoms(use_true_random=True))
        def try_mutations(data: bytes, chance: random.Random) -> None:
            attempt(mutate(data, target.seeds, target.form, chance))

        try_mutations()


def supervise(turn: Turn, seconds: float, seed: int, engine: str) -> None:
    """Run a target until its time is over, again in a new process after one that was ended by an input."""
    from fuzz_oracle import SECONDS

    end, attempts = time.monotonic() + seconds, 0
    turn.folder.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = tempfile.mkdtemp(prefix="fedra-fuzz-", dir=tempfile.gettempdir())  # processes end without notice
    while (left := end - time.monotonic()) > 0:
        child = os.fork()
        if child == 0:
            try:
                _quiet(turn.folder / "output")
                run_target(turn, left, seed + attempts, engine)
            finally:
                os._exit(1)
        status = _wait(child, turn, SECONDS * GRACE)
        turn.read()
        attempts += 1
        if status != 0:
            ended = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
            output = (turn.folder / "output").read_text(errors="replace")[-4000:]
            turn.save(f"process {ended}", turn.current.read_bytes() if turn.current.exists() else b"", output)
            turn.write()
    shutil.rmtree(tempfile.tempdir)
    tempfile.tempdir = None
    for path in (turn.state, turn.current, turn.folder / "output"):
        path.unlink(missing_ok=True)
    if not any(turn.folder.iterdir()):
        turn.folder.rmdir()


def _quiet(path: Path) -> None:
    """Send what a library prints to a file; reports of failures go to the terminal by the parent's descriptor."""
    terminal = os.dup(1)
    sys.stdout = os.fdopen(terminal, "w")
    with open(path, "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def _wait(child: int, turn: Turn, patience: float) -> int:
    """Wait for a process; kill it if an input takes far too long. Returns its exit code, negative for a signal.

    An input's time is that of the processor, because a busy machine may give a process none for long; only an input
    that waits for something, which takes no processor time, is given up after `WAITING` seconds.
    """
    seen, used, since = 0.0, 0.0, time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        changed = turn.current.stat().st_mtime if turn.current.exists() else 0.0
        if changed != seen:
            seen, used, since = changed, _processor_time(child), time.monotonic()
        if _processor_time(child) - used > patience or time.monotonic() - since > WAITING:
            os.kill(child, signal.SIGKILL)
        time.sleep(PAUSE)


def _processor_time(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def repeat(path: Path) -> int:
    """Read a saved input again; returns 1 if it still fails."""
    from fuzz_targets import all_targets

    target = all_targets()[path.resolve().parent.name]
    with target.session() as examine:
        failure = examine(path.read_bytes())
    print("the input is read, or refused with an error of fedra's own" if failure is None else failure.report)
    return 0 if failure is None else 1


def main() -> int:
    """Run the campaign; returns 1 if an input failed."""
    arguments = parse_arguments()
    os.environ |= {"FEDRA_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    sys.dont_write_bytecode = True
    started = time.monotonic()
    if arguments.engine == "atheris" and not (arguments.repeat or arguments.list):
        import atheris

        with atheris.instrument_imports(include=["fedra"], enable_loader_override=False):
            from fuzz_targets import all_targets

            all_targets()
    else:
        import hypothesis  # noqa: F401  (before the processes part)
        from fuzz_targets import all_targets
    if arguments.repeat:
        return repeat(arguments.repeat)
    names = arguments.targets or list(all_targets())
    if arguments.list or not set(names) <= set(all_targets()):
        print("\n".join(all_targets()))
        return 0 if arguments.list else 2
    for name in names:
        all_targets()[name].seeds  # noqa: B018  (made once, before the processes part)
    turns = [Turn(name, WORK / "failures" / name) for name in names]
    print(
        f"{len(names)} targets, {arguments.seconds:g} s, engine {arguments.engine}, seed {arguments.seed}", flush=True
    )
    for number, turn in enumerate(turns):
        left = arguments.seconds - (time.monotonic() - started)
        supervise(turn, max(1.0, left / (len(turns) - number)), arguments.seed, arguments.engine)
        found = f", {turn.failures.total():,} failures of {len(turn.failures)} kinds" if turn.failures else ""
        print(f"[{number + 1}/{len(turns)}] {turn.name}: {turn.inputs:,} inputs{found}", flush=True)
    kinds = sum(len(turn.failures) for turn in turns)
    print(f"{sum(turn.inputs for turn in turns):,} inputs, {kinds} kinds of failures")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
