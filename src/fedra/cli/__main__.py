"""`python -m fedra.cli`, for when the `fedra` command is not on the path."""

from __future__ import annotations

from fedra.cli import main

main()
