"""Files from outside: a pipe is not waited for, and a size is checked before anything is read."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedra.data.matlab import read_matlab
from fedra.data.sets import mnist
from fedra.errors import FedraError
from fedra.faces.benchmarks import megaface_lists
from fedra.faces.datasets.celeba import read_identities
from fedra.faces.datasets.gathering import read_names
from fedra.faces.datasets.lfw_lists import read_pair_list
from fedra.faces.datasets.verification_sets import bin_set
from fedra.faces.metrics.feature_files import read_feature
from fedra.federation.local_data.held_out import HeldOut
from fedra.federation.local_data.identities import IdentityBook
from fedra.federation.local_data.matching import parse_secret
from fedra.federation.roster import read_roster
from fedra.federation.tables import read_table
from fedra.file_reading import LARGE
from fedra.privacy.secret import read_secret
from fedra.reports.sweep_factors import read_sweep

READERS: dict[str, Callable[[Path], Any]] = {
    "a.mat": read_matlab,
    "train-labels-idx1-ubyte": mnist._content,
    "list.txt": megaface_lists._lines,
    "identity_CelebA.txt": read_identities,
    "names.txt": lambda path: read_names(path, ["a"]),
    "pairs.txt": read_pair_list,
    "pairs.bin": lambda path: bin_set(path, root=path.parent),
    "feature.bin": read_feature,
    "held-out.json": HeldOut.open,
    "people.json": IdentityBook.open,
    "match.key": parse_secret,
    "roster.json": read_roster,
    "site.toml": lambda path: read_table(path, "the policy", "write it"),
    "secret": read_secret,
    "cells.json": lambda path: read_sweep(path.parent, "accuracy"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises((FedraError, OSError), match=r"a device or a pipe|must"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_a_size_that_nothing_has_is_not_read(name: str, tmp_path: Path) -> None:
    """The file is sparse: reading it would take all memory, and no disk."""
    with (tmp_path / name).open("wb") as file:
        file.truncate(LARGE + 1)
    with pytest.raises((FedraError, OSError), match=f"{LARGE + 1:,}"):
        READERS[name](tmp_path / name)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    assert len(mnist._content(path)) == 10**6
    monkeypatch.setattr(mnist, "LARGEST", 10**6 - 1)
    with pytest.raises(FedraError, match="must unpack to at most 999,999 bytes"):
        mnist._content(path)
