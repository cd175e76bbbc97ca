"""Tables and figures of the papers that fedra implements: entries, runs, claims and pages."""

from fedra.reproduce.entries import PAPERS, PaperEntry, find_entry, list_entries
from fedra.reproduce.reproduction import Reproduction, reproduce
from fedra.reproduce.verdicts import Claim, Verdict, decide

__all__ = [
    "PAPERS",
    "Claim",
    "PaperEntry",
    "Reproduction",
    "Verdict",
    "decide",
    "find_entry",
    "list_entries",
    "reproduce",
]
