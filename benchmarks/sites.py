"""What a federation's link costs over TLS on loopback: seconds, the coordinator's CPU and memory, idle sites.

The sites are sessions in one other process that answer at once, with as many bytes as came, so that the link is all
that is measured. Idle sites are light clients in a process without torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from measure import FOLDER, Row, announce, main, parser

sys.path.append(str(FOLDER.parent / "tests" / "federation"))

from fedra.federation import keys

if TYPE_CHECKING:  # light clients must not import torch, which these do
    from linking import Loopback, loopback, proxy

    from fedra.federation.packet_files import Inbox
    from fedra.federation.wire import Packet
    from fedra.runners.pages import return_freed_memory

WAITING = 9
SMALL, MODEL = 30_000, 2_700_000
RATE = 20e6 / 8
"""Bytes per second of a line of 20 Mbit/s."""


def measure(quick: bool) -> list[Row]:
    """All rows; a quick run takes small models and few sites."""
    large, idle, repeats = (3_000_000, 4, 2) if quick else (100_000_000, 100, 8)
    rows: list[Row] = []
    names = [f"site-{number}" for number in range(idle)]
    with tempfile.TemporaryDirectory() as folder, loopback(Path(folder), *names) as found:
        with sites_of(found, names[:3]):
            rows += small_round(found, names[:3], 3 * repeats)
            rows += stored(found, names[0], Path(folder) / "stored", 3_000_000 if quick else 25_000_000)
        with sites_of(found, names[:WAITING]):
            rows += waiting(found, names[:WAITING], Path(folder) / "inbox", 3_000_000 if quick else 25_000_000)
        rows += limited(found, names[0], MODEL if not quick else SMALL)
        with proxy(found.port, delay=0.05) as (port, _), sites_of(found, names[:1], port):
            seconds = best(found, names[:1], SMALL, 3)
            rows.append(Row("a small message and its answer at 100 ms round trip", seconds, "s", 2.0))
        with sites_of(found, names, kind="--idle") as process:
            rows += idle_sites(process.pid, idle, 3 if quick else 20)
        with sites_of(found, names[:1]):
            rows += transfer(found, names[0], large)
    return rows


def costs(sizes: Sequence[float]) -> None:
    """Print what one reply costs the coordinator for models of these sizes in MB, as a Markdown table."""
    titles = ("model", "bytes down and up", "coordinator's CPU", "its peak beyond its base", "waited")
    print("| " + " | ".join(titles) + " |\n" + "|" + " ---: |" * len(titles))
    names = ["site-0"]
    with (
        tempfile.TemporaryDirectory() as folder,
        loopback(Path(folder), *names) as found,
        sites_of(found, names),
    ):
        best(found, names, SMALL, 1)
        for size in sizes:
            each = [reply_cost(found, names[0], int(1e6 * size)) for _ in range(2)]
            cpu, peak, seconds = (min(c.cpu for c in each), max(c.peak for c in each), min(c.seconds for c in each))
            print(f"| {size:g} MB | {2 * size:g} MB | {cpu:.2f} s | {peak:,.0f} MB | {seconds:.1f} s |", flush=True)


@dataclass(frozen=True)
class Cost:
    """What one question and its answer cost the coordinator."""

    seconds: float
    cpu: float
    peak: float


def reply_cost(found: Loopback, name: str, size: int) -> Cost:
    """Ask a site with a model of this size, which answers with another."""
    packet = Packet("train", "{}", {"shared": os.urandom(size)})
    found.link.limit(2 * size)
    found.link._links._codec._last = None  # the model of the question before
    base = reset_peak()
    started, cpu = time.perf_counter(), time.process_time()
    answer = found.ask(name, packet, 600)
    assert isinstance(answer, Packet)
    assert answer.nbytes >= size
    return Cost(time.perf_counter() - started, time.process_time() - cpu, peak() - base)


def small_round(found: Loopback, names: list[str], repeats: int) -> list[Row]:
    """Three sites and a small model."""
    started = time.process_time()
    seconds = best(found, names, SMALL, repeats)
    cpu = (time.process_time() - started) / (repeats + 1) / len(names)
    return [
        Row("link of a round, 3 sites, 0.03 MB", seconds, "s", 0.2),
        Row("coordinator's CPU per site and round, 0.03 MB", 1000 * cpu, "ms", 60),
    ]


def waiting(found: Loopback, names: list[str], folder: Path, size: int) -> list[Row]:
    """The memory that answers take which come at the same time: they are on disk, so many cost no more than one."""
    peaks: dict[int, float] = {}
    inbox, packet = Inbox(folder), Packet("train", "{}", {"shared": os.urandom(size)})
    for turn, count in enumerate((1, 1, len(names), 1, len(names))):  # the first one does not count
        base = reset_peak()
        tickets = {found.link.send(name, packet, 600): name for name in names[:count]}
        while tickets:
            for ticket, answer in found.link.collect(5.0).items():
                assert isinstance(answer, Packet), answer
                inbox.put(1, tickets.pop(ticket), f"{turn}", answer)
                del answer
        if turn:
            peaks[count] = min(peak() - base, peaks.get(count, float("inf")))
    grown = 1e6 * (peaks[len(names)] - peaks[1]) / size
    note = ", ".join(f"{count}: {found_peak:.0f} MB" for count, found_peak in peaks.items())
    what = f"peak of {len(names)} answers of {size / 1e6:.0f} MB at once over that of one, in models"
    return [Row(what, grown, "x", 1.0, note=note)]


def stored(found: Loopback, name: str, folder: Path, size: int) -> list[Row]:
    """The memory that answers take while they wait for their round: they are on disk."""
    inbox, before = Inbox(folder), 0.0
    for number in range(12):
        answer = found.ask(name, Packet("train", f'{{"n": {number}}}', {"shared": os.urandom(size)}), 120)
        assert isinstance(answer, Packet)
        inbox.put(1, name, f"{number}", answer)
        del answer
        if number == 7:  # by then freed memory is found again
            before = resident()
    return [Row("memory of 4 more waiting answers over that of one", 1e6 * (resident() - before) / size, "x", 1.0)]


def limited(found: Loopback, name: str, size: int) -> list[Row]:
    """A line of 20 Mbit/s each way; what is computed takes as long as the same exchange without a limit."""
    with sites_of(found, [name]):
        computed = best(found, [name], size, 3)
    with proxy(found.port, rate=RATE) as (port, _), sites_of(found, [name], port):
        seconds = best(found, [name], size, 2)
    pure = 2 * size / RATE
    note = f"{seconds:.2f} s, computed {computed:.2f} s; {seconds / pure:.2f} times the transfer alone"
    return [Row("20 Mbit/s: time over transfer and computing", seconds / (pure + computed), "x", 1.10, note=note)]


def transfer(found: Loopback, name: str, size: int) -> list[Row]:
    """One large model there and another back."""
    cost = reply_cost(found, name, size)
    return [
        Row(f"{size / 1e6:.0f} MB there and back, one site", cost.seconds, "s", 4.0),
        Row(f"coordinator's CPU for {size / 1e6:.0f} MB there and back", cost.cpu, "s"),
        Row("coordinator's peak beyond its base, in models", cost.peak * 1e6 / size, "x", 5.0),
    ]


def best(found: Loopback, names: list[str], size: int, repeats: int) -> float:
    """The quickest exchange of one message with all of these sites, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        packet = Packet("train", "{}", {"shared": os.urandom(size)})
        started = time.perf_counter()
        tickets = {found.link.send(name, packet, 600) for name in names}
        while tickets:
            tickets -= found.link.collect(5.0).keys()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def idle_sites(pid: int, count: int, seconds: float) -> list[Row]:
    """What connections cost that only wait, at the coordinator and at clients that do nothing else."""
    before, started = resident(), time.process_time()
    time.sleep(seconds)
    share = 100 * (time.process_time() - started) / seconds
    each = 1e3 * status_of(pid, "VmRSS") / count
    note = f"the clients' process: {each:.0f} kB per connection, without torch; the coordinator {before:.0f} MB"
    return [Row(f"coordinator's CPU, {count} idle sites", share, "% of a core", 15, note=note)]


def reset_peak() -> float:
    """Give freed memory back, forget the largest memory of this process, and return its memory now, in MB."""
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")
    return resident()


def peak() -> float:
    """The largest memory of this process since it was reset, in MB."""
    return status_of(os.getpid(), "VmHWM")


def status_of(pid: int, key: str) -> float:
    """A size out of a process' status, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{key}:"))


def resident() -> float:
    """The memory of this process now, in MB."""
    return status_of(os.getpid(), "VmRSS")


@contextmanager
def sites_of(
    found: Loopback, names: list[str], port: int | None = None, kind: str = "--echo"
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a session for each of these sites."""
    words = [sys.executable, __file__, kind, str(found.folder), "--port", str(port or found.port), *names]
    before = {name: found.link._sessions.get(found.link._nodes[name], 0) for name in names}
    process = subprocess.Popen(words)
    try:
        while any(found.link._sessions.get(found.link._nodes[name], 0) == before[name] for name in names):
            assert process.poll() is None, "the sites' process ended"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def answer_sites(folder: Path, port: int, names: list[str]) -> None:
    """The sites' side: answer with as many bytes as came, which no other site sends."""
    from linking import SiteSession

    from fedra.federation.wire import Packet

    def answer(packet: Packet) -> Packet:
        return Packet(packet.kind, packet.words, {name: os.urandom(len(blob)) for name, blob in packet.blobs.items()})

    for name in names:
        context = keys.site_context(folder / name, authority_of(folder))
        session = SiteSession(folder / name, f"127.0.0.1:{port}", context, answer)
        threading.Thread(target=session.run, daemon=True).start()
    threading.Event().wait()


def wait_as_sites(folder: Path, port: int, names: list[str]) -> None:
    """Light clients: each waits for questions and gives signs of life, with neither torch nor fedra's own session."""
    from fedra.federation.flower.fleet_client import HEARTBEAT, PatientClient, SignedCalls
    from fedra.federation.flower.private_names import load

    assert "torch" not in sys.modules

    def wait(name: str) -> None:
        key = keys.read_key(keys.site_files(folder / name).key)
        context = keys.site_context(folder / name, authority_of(folder))
        client = PatientClient.connect(f"127.0.0.1:{port}", context, SignedCalls(key))
        public = load("public_key_to_bytes")(key.public_key())
        request = load("ActivateNodeRequest")(public_key=public, heartbeat_interval=HEARTBEAT)
        node = load("Node")(node_id=client.ActivateNode(request).node_id)
        client.tries, beaten = 8, time.monotonic()
        while True:
            client.PullMessages(load("PullMessagesRequest")(node=node))
            if time.monotonic() - beaten > HEARTBEAT:
                client.SendNodeHeartbeat(load("SendNodeHeartbeatRequest")(node=node, heartbeat_interval=HEARTBEAT))
                beaten = time.monotonic()

    for name in names:
        threading.Thread(target=wait, args=(name,), daemon=True).start()
    threading.Event().wait()


def authority_of(folder: Path) -> str:
    """The certificate of the federation's authority."""
    return keys.to_pem(keys.read_certificate(keys.authority_files(folder / "coordinator").certificate))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--sizes", type=float, nargs="+", metavar="MB", help="what a reply costs, for these models")
    options.add_argument("--echo", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--idle", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.echo is not None:
        answer_sites(given.echo, given.port, given.names)
    elif given.idle is not None:
        wait_as_sites(given.idle, given.port, given.names)
    else:
        from linking import Loopback, loopback, proxy

        from fedra.federation.packet_files import Inbox
        from fedra.federation.wire import Packet
        from fedra.runners.pages import return_freed_memory

        if given.sizes:
            announce()
            costs(given.sizes)
        else:
            main(measure, options)
