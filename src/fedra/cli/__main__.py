"""`python -m fedra.cli`, where the command `fedra` is not on the path."""

from __future__ import annotations

from fedra.cli import main

main()
