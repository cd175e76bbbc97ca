"""Answers on the coordinator's disk until their round is done: memory stays flat, and a crash keeps what came."""

from __future__ import annotations

from pathlib import Path

from fedra.federation.packet_files import read_packet, write_packet
from fedra.federation.wire import Packet


class Inbox:
    """Answers by the digest of their question, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, round: int, site: str, question: str, answer: Packet) -> None:
        """Write an answer of a round, counted from 1."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_packet(self._folder / f"{round:06d}-{site}-{question}.answer", answer)

    def has(self, site: str, question: str) -> bool:
        """Return whether the answer of a site to a question is there and whole."""
        return self.get(site, question) is not None

    def get(self, site: str, question: str) -> Packet | None:
        """Return the answer of a site to a question, if it is there and whole."""
        for path in self._folder.glob(f"*-{site}-{question}.answer"):
            return read_packet(path)
        return None

    def forget(self, durable: int) -> None:
        """Remove the answers of rounds up to the last checkpoint, and what a killed process left."""
        for path in self._folder.glob("*.answer*"):
            if path.suffix != ".answer" or int(path.name.partition("-")[0]) <= durable:
                path.unlink(missing_ok=True)
