"""Data are read once; a changed folder is noticed and takes effect on request alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_site_data import GRAY, draw, fill

from fedra.errors import DataError
from fedra.federation.local_data.data_schema import DataSchema
from fedra.federation.local_data.site_cache import cache_file, is_changed, open_data, refresh_data
from fedra.federation.site_config import SiteConfig


def site_of(base: Path) -> SiteConfig:
    return SiteConfig.model_validate({"name": "a", "data": {"path": str(base)}})


def test_a_changed_folder_is_noticed_and_takes_effect_by_refresh(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", normal=5, pneumonia=5)
    site = site_of(base)
    first = open_data(tmp_path, site, GRAY)
    assert not is_changed(tmp_path, site)
    draw(base / "normal" / "new.png", 7)
    assert is_changed(tmp_path, site)
    again = open_data(tmp_path, site, GRAY)
    assert torch.equal(first.inputs, again.inputs)
    assert (again.counts, again.sizes(), again.clients) == (first.counts, first.sizes(), first.clients)
    assert len(refresh_data(tmp_path, site, GRAY).inputs) == 11
    assert not is_changed(tmp_path, site)
    assert cache_file(tmp_path).stat().st_mode & 0o077 == 0


def test_other_labels_or_another_plan_ask_for_a_refresh(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", normal=5, pneumonia=5)
    open_data(tmp_path, site_of(base), GRAY)
    other = DataSchema(shape=(1, 9, 9), classes=GRAY.classes)
    with pytest.raises(DataError, match="fedra site refresh"):
        open_data(tmp_path, site_of(base), other)
    labeled = SiteConfig.model_validate({"name": "a", "data": {"path": str(base), "labels": {"normal": ""}}})
    with pytest.raises(DataError, match="fedra site refresh"):
        open_data(tmp_path, labeled, GRAY)


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    base = fill(tmp_path / "data", normal=5, pneumonia=5)
    cache_file(tmp_path).parent.mkdir()
    cache_file(tmp_path).write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"data\.safetensors"):
        open_data(tmp_path, site_of(base), GRAY)
