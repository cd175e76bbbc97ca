import itertools
from contextlib import suppress

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from fedra.config.schema import Config
from fedra.errors import ConfigError, RunError
from fedra.experiment.secure_run import ring_vectors
from fedra.privacy.secure import masks, shamir
from fedra.privacy.secure.neighbors import check_degree, find_neighbors, share_threshold
from fedra.privacy.secure.ring import Ring
from fedra.privacy.secure.secure_client import agree


def test_key_agreement_by_rfc_7748():
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob_public = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    assert agree(alice, bob_public).hex() == "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"


def test_key_derivation_by_rfc_5869():
    found = masks.derive_key(bytes([0x0B] * 22), b"", 42)  # test case 3: no salt, no info
    assert found.hex() == ("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8")


def test_key_stream_by_sp_800_38a():
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    stream = Cipher(AES(key), CTR(bytes(range(0xF0, 0x100)))).encryptor()
    assert stream.update(bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")).hex() == "874d6191b620e3261bef6864990db6ce"


def test_masks_are_the_key_stream_whatever_the_length(monkeypatch):
    whole = np.zeros(1000, dtype=np.uint32)
    masks.add_mask(whole, bytes(range(32)), b"round 1", 1)
    assert whole[:6].tolist() == [2011638193, 112175611, 2504608753, 962321961, 558027475, 2434743657]
    monkeypatch.setattr(masks, "CHUNK", 64)
    pieces = np.zeros(1000, dtype=np.uint32)
    masks.add_mask(pieces, bytes(range(32)), b"round 1", 1)
    assert (whole == pieces).all()
    masks.add_mask(pieces, bytes(range(32)), b"round 1", -1)
    assert not pieces.any()


def test_shares_over_a_small_field(monkeypatch):
    monkeypatch.setattr(shamir, "PRIME", 1613)
    drawn = iter([166, 94])
    shares = shamir.split_secret((1234).to_bytes(32, "big"), 3, range(1, 7), lambda _: next(drawn))
    assert [int.from_bytes(share, "big") for share in shares.values()] == [1494, 329, 965, 176, 1188, 775]


def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not():
    secret = bytes(range(100, 132))
    shares = shamir.split_secret(secret, 3, [2, 3, 5, 8, 13])
    for chosen in itertools.combinations(shares, 3):
        assert shamir.join_shares({index: shares[index] for index in chosen}) == secret
    for chosen in itertools.combinations(shares, 2):
        with suppress(RunError):  # a wrong sum may be above 2^256; either way it is not the secret
            assert shamir.join_shares({index: shares[index] for index in chosen}) != secret


@pytest.mark.parametrize("indices", [[0, 1, 2], [1, 1, 2]])
def test_indices_of_shares(indices):
    with pytest.raises(ValueError, match="positive and different"):
        shamir.split_secret(bytes(32), 2, indices)


@pytest.mark.parametrize("clients", [3, 10, 100, 1000])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_sum_at_the_bound_does_not_wrap(clients, sign):
    ring = Ring.for_sum_of(clients, bound=0.7)
    one = ring.encode(np.full(3, sign * 0.7))
    total = one * np.uint32(clients)
    assert ring.decode(total) == pytest.approx(sign * 0.7 * clients, rel=1e-6)


def test_a_sum_is_off_by_half_a_step_for_each_client():
    rng, ring = np.random.default_rng(0), Ring.for_sum_of(50, bound=2.0)
    values = rng.uniform(-2, 2, (50, 1000))
    total = sum((ring.encode(row) for row in values), np.zeros(1000, dtype=np.uint32))
    assert abs(ring.decode(total) - values.sum(axis=0)).max() <= 50 * ring.step / 2


def test_numbers_of_a_ring_must_be_finite_and_its_bound_positive():
    with pytest.raises(ConfigError, match="must be finite"):
        Ring(1.0, 20).encode(np.array([np.nan]))
    with pytest.raises(ConfigError, match=r"secure\.bound must be positive"):
        Ring.for_sum_of(3, bound=0.0)


def test_fewer_bits_are_coarser_and_more_than_fit_are_not_taken():
    assert [Ring.for_sum_of(100, 1.0, bits=bits).bits for bits in (0, 8, 30)] == [23, 8, 23]


def test_the_bits_of_a_configuration_are_those_of_its_sums():
    config = Config.model_validate({"secure": {"aggregation": "masks", "bound": 2.0, "bits": 12}})
    assert ring_vectors(config, 5, 10, None).ring == Ring(2.0, 12)


@pytest.mark.parametrize("members", [12, 40])
def test_neighbors_are_mutual_and_everyone_can_compute_them(members):
    degree = 2 * int(np.ceil(np.log2(members))) + 2
    around = {one: find_neighbors(one, range(members), degree, b"round") for one in range(members)}
    for one, others in around.items():
        assert one not in others
        assert len(others) == min(degree, members - 1)
        assert all(one in around[other] for other in others)
    if degree < members - 1:
        assert around[0] != find_neighbors(0, range(members), degree, b"another")


def test_degrees():
    check_degree(0, 128)
    check_degree(16, 100)
    with pytest.raises(ConfigError, match="must not be 0"):
        check_degree(0, 129)
    with pytest.raises(ConfigError, match="even and at least 16"):
        check_degree(10, 100)


def test_a_threshold_is_above_half_of_the_neighborhood():
    assert [share_threshold(2 / 3, neighbors) for neighbors in (2, 3, 5, 20)] == [3, 3, 5, 15]
