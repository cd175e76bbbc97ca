"""`python -m fedra.cli`, for when the `fedra` command is not on the path."""

from __future__ import annotations

from fedra.__main__ import main

main()
