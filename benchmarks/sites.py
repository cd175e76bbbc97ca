"""What a federation's link costs over TLS on loopback: seconds, the coordinator's CPU and memory, idle sites.

The sites are sessions in one other process that send back what they receive, so that the link is all that is measured.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import FOLDER, Row, main, parser

sys.path.append(str(FOLDER.parent / "tests" / "federation"))

from linking import Loopback, SiteSession, loopback, proxy

from fedra.federation import keys
from fedra.federation.inbox import Inbox
from fedra.federation.wire import Packet

SMALL, MODEL = 30_000, 2_700_000
RATE = 20e6 / 8
"""Bytes per second of a line of 20 Mbit/s."""


def measure(quick: bool) -> list[Row]:
    """All rows; a quick run takes small models and few sites."""
    large, idle, repeats = (3_000_000, 4, 2) if quick else (100_000_000, 100, 8)
    rows: list[Row] = []
    names = [f"site-{number}" for number in range(idle)]
    with tempfile.TemporaryDirectory() as folder, loopback(Path(folder), *names) as found:
        with echoing(found, names[:3]):
            rows += small_round(found, names[:3], 3 * repeats)
            rows += waiting(found, names[0], Path(folder) / "inbox", 3_000_000 if quick else 25_000_000)
        with proxy(found.port, rate=RATE) as (port, _), echoing(found, names[:1], port):
            rows += limited(found, names[0], MODEL if not quick else SMALL)
        with proxy(found.port, delay=0.05) as (port, _), echoing(found, names[:1], port):
            seconds = best(found, names[:1], SMALL, 3)
            rows.append(Row("a small message and its answer at 100 ms round trip", seconds, "s", 2.0))
        with echoing(found, names):
            rows.append(Row(f"coordinator's CPU, {idle} idle sites", idle_share(3 if quick else 20), "% of a core", 15))
        with echoing(found, names[:1]):
            rows += transfer(found, names[0], large)
    return rows


def small_round(found: Loopback, names: list[str], repeats: int) -> list[Row]:
    """Three sites and a small model."""
    started = time.process_time()
    seconds = best(found, names, SMALL, repeats)
    cpu = (time.process_time() - started) / (repeats + 1) / len(names)
    return [
        Row("link of a round, 3 sites, 0.03 MB", seconds, "s", 0.2),
        Row("coordinator's CPU per site and round, 0.03 MB", 1000 * cpu, "ms", 60),
    ]


def waiting(found: Loopback, name: str, folder: Path, size: int) -> list[Row]:
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
    """A line of 20 Mbit/s each way."""
    seconds = best(found, [name], size, 1)
    return [Row("20 Mbit/s: time over pure transfer", seconds / (2 * size / RATE), "x", 1.10, note=f"{seconds:.1f} s")]


def transfer(found: Loopback, name: str, size: int) -> list[Row]:
    """One large model there and back."""
    base = peak()
    started, cpu = time.perf_counter(), time.process_time()
    packet = Packet("train", "{}", {"shared": os.urandom(size)})
    assert found.ask(name, packet, 600) == packet
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    grown = (peak() - base) * 1e6 / size
    return [
        Row(f"{size / 1e6:.0f} MB there and back, one site", seconds, "s", 4.0),
        Row(f"coordinator's CPU for {size / 1e6:.0f} MB there and back", cpu, "s"),
        Row("coordinator's peak beyond its base, in models", grown, "x", 5.0),
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


def idle_share(seconds: float) -> float:
    """The CPU of this process while nothing is asked."""
    started = time.process_time()
    time.sleep(seconds)
    return 100 * (time.process_time() - started) / seconds


def peak() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def resident() -> float:
    """The memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def echoing(found: Loopback, names: list[str], port: int | None = None) -> Iterator[None]:
    """A process with a session for each of these sites."""
    words = [sys.executable, __file__, "--echo", str(found.folder), "--port", str(port or found.port), *names]
    process = subprocess.Popen(words)
    try:
        before = {name: found.link._sessions.get(found.link._nodes[name], 0) for name in names}
        while any(found.link._sessions.get(found.link._nodes[name], 0) == before[name] for name in names):
            assert process.poll() is None, "the sites' process ended"
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def echo_sites(folder: Path, port: int, names: list[str]) -> None:
    """The sites' side: send back what was received."""
    authority = keys.to_pem(keys.read_certificate(keys.authority_files(folder / "coordinator").certificate))
    for name in names:
        context = keys.site_context(folder / name, authority)
        session = SiteSession(folder / name, f"127.0.0.1:{port}", context, lambda packet: packet)
        threading.Thread(target=session.run, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--echo", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.echo is not None:
        echo_sites(given.echo, given.port, given.names)
    else:
        main(measure, options)
