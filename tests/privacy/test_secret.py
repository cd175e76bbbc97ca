import base64
import stat

import numpy as np
import pytest
import torch

from fedra.errors import RunError
from fedra.privacy.secret import Secret, read_secret, write_secret


def test_numbers_depend_on_the_secret_the_purpose_and_the_place():
    secret = Secret(bytes(range(32)))
    drawn = secret.normals(8, "noise", 1)
    assert torch.equal(drawn, secret.normals(8, "noise", 1))
    for other in (
        secret.normals(8, "noise", 2),
        secret.normals(8, "count", 1),
        secret.normals(8, "noise", 1, 0),
        Secret(bytes(32)).normals(8, "noise", 1),
    ):
        assert not torch.equal(drawn, other)


def test_normals_are_normal():
    drawn = Secret(bytes(32)).normals(600_001, "noise").double()
    assert drawn.mean().abs() < 0.006
    assert drawn.var().item() == pytest.approx(1, abs=0.01)
    assert (drawn**4).mean().item() == pytest.approx(3, abs=0.05)
    assert (drawn[:-1] * drawn[1:]).mean().abs() < 0.006
    assert (drawn.abs() < 1.959964).double().mean().item() == pytest.approx(0.95, abs=0.002)


def test_uniforms_fill_the_interval():
    drawn = Secret(bytes(32)).uniforms(100_000, "cohort", 1)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert np.histogram(drawn, 10, (0, 1))[0] == pytest.approx(10_000, rel=0.05)


def test_a_derived_secret_is_another_one():
    secret = Secret.create()
    assert secret.derive("client", 1) != secret.derive("client", 2)
    assert secret.derive("client", 1) == Secret(secret.data).derive("client", 1)


def test_a_secret_is_in_no_text(tmp_path):
    secret = Secret.create()
    for text in (repr(secret), str(secret), f"{secret}", repr(vars(secret).keys())):
        assert secret.data.hex() not in text
        assert base64.b64encode(secret.data).decode() not in text


def test_a_file_that_only_its_owner_can_read(tmp_path):
    path, secret = tmp_path / "checkpoint" / "secret", Secret.create()
    write_secret(path, secret)
    assert read_secret(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_lost_or_damaged_secret_is_refused(tmp_path):
    with pytest.raises(RunError, match="start another run"):
        read_secret(tmp_path / "secret")
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(RunError, match="must have 32 bytes, got 5"):
        read_secret(tmp_path / "secret")
