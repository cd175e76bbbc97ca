"""Masks: key streams that are added to a client's vector and cancel in the sum."""

from __future__ import annotations

import numpy as np

CHUNK = 1 << 20
"""Numbers of a mask computed at once: 8 MB besides the vector, whatever its length."""
_ZEROS = bytes(4 * CHUNK)
MASK = b"fedra mask "
SHARE = b"fedra share "


def derive_key(secret: bytes, info: bytes, length: int) -> bytes:
    """Derive a key by HKDF-SHA256 (RFC 5869) without salt.

    Args:
        secret: Shared or random bytes.
        info: What the key is for, with the round.
        length: Bytes of the key.

    Returns:
        The key.
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, salt=None, info=info).derive(secret)


def add_mask(total: np.ndarray, secret: bytes, context: bytes, sign: int) -> None:
    """Add the mask of a secret to a uint32 vector in place, or subtract it.

    Args:
        total: The vector, changed in place modulo 2^32.
        secret: An own seed, or what two clients have in common.
        context: The round's name, so no key stream is ever used twice.
        sign: 1 to add, -1 to subtract.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    key = derive_key(secret, MASK + context, 16)
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor()
    combine = np.add if sign > 0 else np.subtract
    out = bytearray(4 * CHUNK + 16)
    for start in range(0, len(total), CHUNK):
        part = total[start : start + CHUNK]
        # update_into writes in place; update would copy the stream and take four times as long
        stream.update_into(memoryview(_ZEROS)[: 4 * len(part)], out)
        combine(part, np.frombuffer(out, dtype="<u4", count=len(part)), out=part)
