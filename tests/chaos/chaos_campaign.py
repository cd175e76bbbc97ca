"""A kill campaign: `make chaos`, or `python tests/chaos/chaos_campaign.py --help`.

Commands are killed with SIGKILL at random moments and repeated until they finish. Each must then have left exactly the
files of an undisturbed one, bit for bit, and nothing else: no temporary file, no lock, no process, no shared memory.
Every moment is keyed by (seed, scenario, trial, attempt), so `--only run:17` repeats trial 17 of `run`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ |= {"FEDRA_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
sys.path.append(str(Path(__file__).parent))

from chaos_compare import Content, differences, read_folder
from chaos_federation import FEDERATION, run_federation
from chaos_kill import Kill, leftovers_in_shared_memory, run_killed
from chaos_scenarios import KEPT, SCENARIOS, Scenario

MOST_ATTEMPTS = 5
"""Kills of one trial."""
FEDERATION_KILLS = 4
"""Kills of one federation."""


@dataclass
class Tally:
    """What happened to one scenario."""

    name: str
    trials: int = 0
    kills: int = 0
    failures: list[str] = field(default_factory=list)


class Trials:
    """The trials of one scenario, which is first run undisturbed, twice."""

    def __init__(self, scenario: Scenario, work: Path, seed: int) -> None:
        self.scenario, self.work, self.seed = scenario, work, seed
        self.tally = Tally(scenario.name)
        self.first, self.second = (self._undisturbed(number) for number in range(2))

    def _undisturbed(self, number: int) -> Content:
        folder = self._prepare()
        ending = run_killed(lambda: self.scenario.act(folder), self.work, Kill())
        if ending.code != 0:
            raise SystemExit(f"{self.scenario.name} fails undisturbed:\n{ending.report}")
        self.changes, self.seconds = ending.changes, ending.seconds
        return read_folder(folder)

    def _prepare(self) -> Path:
        folder = self.work / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.scenario.prepare(folder)
        temporary = folder / "tmp"  # so that temporary files of a killed command are seen
        temporary.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        return folder

    def moments(self, trial: int) -> Iterator[Kill]:
        """When to kill this trial's attempts, half of them before a change of a file."""
        for attempt in range(MOST_ATTEMPTS):
            chance = random.Random(f"{self.seed} {self.scenario.name} {trial} {attempt}")
            if attempt and chance.random() < 0.4:
                return
            if chance.random() < 0.5:
                yield Kill(change=chance.randint(1, self.changes))
            else:
                yield Kill(seconds=chance.uniform(0.02, 0.95) * self.seconds)

    def run(self, trial: int) -> int:
        """Run one trial; returns its number of kills."""
        folder, shared, told = self._prepare(), set(os.listdir("/dev/shm")), []
        kills = 0
        for kill in (*self.moments(trial), Kill()):
            ending = run_killed(lambda: self.scenario.act(folder), self.work, kill)
            kills += ending.killed
            told.append(f"  {kill if kill != Kill() else 'undisturbed'}: ended with {ending.code}")
            if not ending.killed:
                break
        problems = [ending.report] if ending.code else differences(read_folder(folder), self.first, self.second)
        problems += [f"{name} is left in shared memory" for name in leftovers_in_shared_memory(shared)]
        self._count(trial, kills, problems, told)
        return kills

    def _count(self, trial: int, kills: int, problems: Sequence[str], told: Sequence[str]) -> None:
        self.tally.trials += 1
        self.tally.kills += kills
        if problems:
            report = "\n".join((f"{self.scenario.name}:{trial} (seed {self.seed}) failed", *told, *problems))
            self.tally.failures.append(report)
            print(report, flush=True)


class FederationTrials(Trials):
    """Trials of a federation, whose processes are killed and started again while it runs."""

    def __init__(self, work: Path, seed: int) -> None:
        self.scenario, self.work, self.seed = FEDERATION, work, seed
        self.tally = Tally(FEDERATION.name)

    def run(self, trial: int) -> int:
        shared = set(os.listdir("/dev/shm"))
        folder = self._prepare()
        kills, told, problems = run_federation(folder, f"{self.seed} federation {trial}", FEDERATION_KILLS)
        problems += [f"{name} is left in shared memory" for name in leftovers_in_shared_memory(shared)]
        self._count(trial, kills, problems, told)
        return kills


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="names of scenarios; all by default")
    parser.add_argument("--kills", type=int, default=200, help="kills of the whole campaign")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="SCENARIO:TRIAL", help="repeat one trial")
    return parser.parse_args()


def main() -> int:
    """Run the campaign; returns 1 if a trial failed."""
    arguments = parse_arguments()
    only, _, number = (arguments.only or "").partition(":")
    known = {scenario.name: scenario for scenario in (*SCENARIOS, FEDERATION)}
    names = [only] if only else arguments.scenarios or list(known)
    if not set(names) <= set(known):
        print(f"scenarios are {', '.join(known)}")
        return 2
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedra-chaos-") as name:
        KEPT[:] = [Path(name) / "kept"]
        trials = [_open(known[one], Path(name) / one, arguments.seed) for one in names]
        if number:
            trials[0].run(int(number))
        else:
            _share(trials, arguments.kills)
        tempfile.tempdir = None
    for one in (trial.tally for trial in trials):
        print(f"{one.name}: {one.trials} trials, {one.kills} kills, {len(one.failures)} failures")
    kills, failures = (sum(map(count, (trial.tally for trial in trials))) for count in (_kills, _failures))
    print(f"{kills} kills, {failures} failures, {time.monotonic() - started:.0f} s, seed {arguments.seed}")
    return 1 if failures else 0


def _kills(tally: Tally) -> int:
    return tally.kills


def _failures(tally: Tally) -> int:
    return len(tally.failures)


def _open(scenario: Scenario, work: Path, seed: int) -> Trials:
    work.mkdir(parents=True)
    return FederationTrials(work, seed) if scenario is FEDERATION else Trials(scenario, work, seed)


def _share(trials: Sequence[Trials], kills: int) -> None:
    """Give every scenario the same number of kills; a federation a fifth of that, because it takes as long."""
    weights = [0.2 if isinstance(one, FederationTrials) else 1.0 for one in trials]
    for number, one in enumerate(trials):
        left = kills - sum(trial.tally.kills for trial in trials)
        goal = round(left * weights[number] / sum(weights[number:]))
        trial = 0
        while one.tally.kills < goal:
            one.run(trial)
            trial += 1
        print(f"{one.scenario.name}: {one.tally.kills} kills in {trial} trials", flush=True)


if __name__ == "__main__":
    sys.exit(main())
