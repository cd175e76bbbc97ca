"""Match people across sites by tokens that are keyed with a secret of the sites, which the coordinator does not have.

Equal tokens are one person, whose class then has several owners. What that reveals is in the threat model.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from fedra.errors import ConfigError
from fedra.federation.keys import group_digits
from fedra.file_reading import read_text_file
from fedra.writing import write_atomically

SECRET = "match.secret"
"""The file of the secret in a site's folder."""
SIZE = 32
"""Bytes of a secret: too many to guess, so a token says nothing to those who do not have it."""


def create_secret(folder: Path) -> bytes:
    """Create the secret of a federation's sites in a site's folder; an existing one is never replaced."""
    return _store(folder, secrets.token_bytes(SIZE))


def copy_secret(folder: Path, source: Path) -> bytes:
    """Take the secret that another site created, from the file that it handed over."""
    return _store(folder, parse_secret(source))


def read_secret(folder: Path) -> bytes:
    """Read the secret in a site's folder."""
    path = folder / SECRET
    if not path.is_file():
        raise ConfigError(
            f"the plan matches people across sites, and needs the sites' secret '{path}', got none: one site makes it "
            f"with `fedra site secret`, the others take it with `fedra site secret {folder} --from FILE`"
        )
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"the secret '{path}' must be readable by its owner alone: chmod 600 '{path}'")
    return parse_secret(path)


def parse_secret(path: Path) -> bytes:
    """Read a secret's file."""
    try:
        text = read_text_file(path).strip()
    except FileNotFoundError:
        raise ConfigError(f"the secret '{path}' must exist, got no such file: check the path") from None
    except (UnicodeDecodeError, IsADirectoryError):
        text = ""
    if re.fullmatch(f"[0-9a-f]{{{2 * SIZE}}}", text) is None:
        raise ConfigError(
            f"the secret '{path}' must be one that `fedra site secret` made ({2 * SIZE} hexadecimal digits), got "
            "something else: a secret that people choose can be guessed"
        )
    return bytes.fromhex(text)


def secret_fingerprint(secret: bytes) -> str:
    """Return what people at two sites compare by telephone; the secret cannot be computed from it."""
    return group_digits(_keyed(secret, "fingerprint", "")[:32])


def secret_mark(secret: bytes, federation: str) -> str:
    """Return what the coordinator compares, so that a site with another secret is noticed."""
    return _keyed(secret, "secret", federation)


def person_tokens(secret: bytes, federation: str, names: Sequence[str]) -> list[str]:
    """Return the token of each person. Names must be the same at all sites, to the letter.

    Args:
        secret: The sites' secret.
        federation: Name of the federation: in another one the same person has another token.
        names: Names of people, such as those of their folders; the two ways to write an accent count as one.

    Returns:
        A token of 64 hexadecimal digits for each name.
    """
    return [_keyed(secret, "person", federation, unicodedata.normalize("NFC", name)) for name in names]


def _keyed(secret: bytes, *words: str) -> str:
    text = json.dumps(["fedra", *words]).encode()  # a list: no two lists of words have the same text
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def _store(folder: Path, secret: bytes) -> bytes:
    path = folder / SECRET
    if path.exists():
        raise ConfigError(
            f"'{path}' must not exist, got a secret: tokens of another one would belong to other people; remove it "
            "only if no federation uses it"
        )
    write_atomically(path, secret.hex().encode() + b"\n", private=True)
    return secret
