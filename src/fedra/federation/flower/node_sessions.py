"""Which process speaks for a node: the one that began last. One that was replaced stays replaced."""

from __future__ import annotations

import threading
from collections import defaultdict

SESSION_HEADER = "x-fedra-session"
"""The header with which a site's process names itself; a random text, new for every process."""
REPLACED = "another process with this site's key has taken its place"


class NodeSessions:
    """The present session of every node, and those that it replaced.

    A replaced process that connects again is refused: otherwise two processes with one key would take turns.
    """

    def __init__(self) -> None:
        self._present: dict[int, str] = {}
        self._replaced: dict[int, set[str]] = defaultdict(set)
        self._lock = threading.Lock()

    def begin(self, node: int, session: str) -> str | None:
        """Let a session speak for a node; returns the one that it replaces, if another did."""
        with self._lock:
            before = self._present.get(node)
            self._present[node] = session
            if before is None or before == session:
                return None
            self._replaced[node].add(before)
            return before

    def is_replaced(self, node: int, session: str) -> bool:
        """Return whether another session began after this one."""
        return session in self._replaced.get(node, ())
