"""Keys and certificates: the federation's own authority, the coordinator's server, and each site.

Every key is created on the machine that uses it and never leaves it. What is exchanged is public: the authority's
certificate (in the invitation) and the site's self-signed certificate (in its `.site` file). Two people compare the
fingerprints of both by telephone. No message of an exception contains key material.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedra.errors import ConfigError
from fedra.file_reading import SMALL, read_file
from fedra.writing import write_atomically

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise ConfigError("a federation needs the extra 'federation': pip install 'fedra[federation]'") from None

CURVE = ec.SECP384R1()
HASH = hashes.SHA384()
AUTHORITY_DAYS, SERVER_DAYS, SITE_DAYS = 3650, 365, 1095
WARN_DAYS = 30
"""Days before its end from which a certificate's owner is warned."""
EARLIER = timedelta(days=1)
"""How long before now a certificate is valid, for machines with a slow clock."""
LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class KeyFiles:
    """A private key and its certificate, as two PEM files."""

    key: Path
    certificate: Path


def authority_files(folder: Path) -> KeyFiles:
    """Return the files of the federation's authority in the coordinator's folder `folder`."""
    return KeyFiles(folder / "keys" / "ca.key", folder / "keys" / "ca.pem")


def server_files(folder: Path) -> KeyFiles:
    """Return the files of the coordinator's server."""
    return KeyFiles(folder / "keys" / "server.key", folder / "keys" / "server.pem")


def site_files(folder: Path) -> KeyFiles:
    """Return the files of the site whose folder is `folder`."""
    return KeyFiles(folder / "key.pem", folder / "site.pem")


def create_authority(folder: Path, name: str) -> KeyFiles:
    """Create the key and certificate of a federation's authority, which signs the server's certificate alone."""
    files = authority_files(folder)
    key = _create_key(files.key)
    who = _name(f"{name} authority")
    builder = _certificate(who, who, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    write_atomically(files.certificate, _to_pem(builder.sign(key, HASH)))
    return files


def create_server(folder: Path, names: Sequence[str]) -> KeyFiles:
    """Create the server's key and certificate for host names and IP addresses; localhost is always included."""
    files = server_files(folder)
    _create_key(files.key)
    _issue_server(folder, names)
    return files


def renew_server(folder: Path, names: Sequence[str] = (), *, new_key: bool = False) -> KeyFiles:
    """Issue a new server certificate by the same authority, so sites need nothing new.

    Args:
        folder: The coordinator's folder.
        names: Host names and IP addresses; by default those of the present certificate.
        new_key: Whether to replace the server's key too.

    Returns:
        The server's files.
    """
    files = server_files(folder)
    names = names or server_names(read_certificate(files.certificate))
    if new_key:
        files.key.unlink(missing_ok=True)
    if not files.key.exists():  # also after a renewal that was killed
        _create_key(files.key)
    _issue_server(folder, names)
    return files


def create_site(folder: Path, name: str) -> KeyFiles:
    """Create a site's key and its self-signed certificate, which is valid for this key alone and signs nothing else."""
    files = site_files(folder)
    _create_key(files.key)
    renew_site(folder, name)
    return files


def renew_site(folder: Path, name: str) -> KeyFiles:
    """Issue a new self-signed certificate for the site's key; its fingerprint stays the same."""
    files = site_files(folder)
    key, who = read_key(files.key), _name(name)
    builder = _certificate(who, who, key.public_key(), SITE_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    write_atomically(files.certificate, _to_pem(builder.sign(key, HASH)))
    return files


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the fingerprint of a certificate's public key: 128 bits of SHA-256 in groups of four digits.

    A renewed certificate of the same key has the same fingerprint.
    """
    public = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA256())
    digest.update(public)
    return group_digits(digest.finalize()[:16].hex())


def group_digits(digits: str) -> str:
    """Format hexadecimal digits in groups of four, which are easy to read out."""
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def same_fingerprint(first: str, second: str) -> bool:
    """Return whether two fingerprints agree, whatever their case and spaces."""
    plain = ("".join(text.split()).replace(":", "").lower() for text in (first, second))
    return len(set(plain)) == 1


def name_of(certificate: x509.Certificate) -> str:
    """Return the name in a certificate's subject."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def server_names(certificate: x509.Certificate) -> list[str]:
    """Return the host names and IP addresses of a server certificate, without those of this machine."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return [name for name in found if name not in LOOPBACK]


def expiry_warning(certificate: x509.Certificate, what: str, remedy: str, now: datetime | None = None) -> str | None:
    """Return a warning if a certificate has expired or will within 30 days, else None."""
    left = certificate.not_valid_after_utc - (now or datetime.now(UTC))
    if left > timedelta(days=WARN_DAYS):
        return None
    day = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    if left < timedelta(0):
        return f"the certificate of {what} expired on {day}: {remedy}"
    return f"the certificate of {what} expires on {day}, in {left.days} days: {remedy}"


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate file."""
    if not path.is_file():
        raise ConfigError(f"the certificate '{path}' must exist, got no such file: create it with `init` or `renew`")
    return parse_certificate(read_file(path, SMALL).decode("ascii", errors="replace"), f"'{path}'")


def parse_certificate(pem: str, where: str) -> x509.Certificate:
    """Parse exactly one PEM certificate on the federation's curve."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
        if len(found) != 1:
            raise ValueError
        public = found[0].public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{where} must hold one certificate in PEM form, got something else: ask for the file again"
        ) from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != CURVE.name:
        raise ConfigError(f"the certificate in {where} must have a key on the curve P-384, got another kind of key")
    return found[0]


def check_authority(certificate: x509.Certificate, where: str) -> None:
    """Raise unless a certificate is that of a federation's authority: self-signed, for signing certificates."""
    _check_self_signed(certificate, where)
    if not _is_authority(certificate):
        raise ConfigError(f"the certificate in {where} must be that of an authority, got one that signs nothing")


def check_site(certificate: x509.Certificate, where: str, now: datetime | None = None) -> None:
    """Raise unless a certificate is a site's: self-signed, valid now, and unable to sign others."""
    _check_self_signed(certificate, where)
    if _is_authority(certificate):
        raise ConfigError(
            f"the certificate in {where} must not be able to sign others, got an authority's: make one with `site init`"
        )
    if certificate.not_valid_after_utc < (now or datetime.now(UTC)):
        raise ConfigError(
            f"the certificate in {where} must be valid, got one that expired on "
            f"{certificate.not_valid_after_utc:%Y-%m-%d}: the site renews it with `fedra site renew`"
        )


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key file, which only its owner may be able to read."""
    if not path.is_file():
        raise ConfigError(f"the key '{path}' must exist, got no such file: restore it from a backup, or start anew")
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"the key '{path}' must be readable by its owner alone: chmod 600 '{path}'")
    try:
        key = serialization.load_pem_private_key(read_file(path, SMALL), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != CURVE.name:
        raise ConfigError(f"the key '{path}' must be a private key on the curve P-384, got something else")
    return key


def sign(folder: Path, words: bytes) -> bytes:
    """Sign words with the key of the site whose folder is `folder`."""
    return read_key(site_files(folder).key).sign(words, ec.ECDSA(HASH))


def has_signed(certificate: x509.Certificate, words: bytes, signature: bytes) -> bool:
    """Return whether a signature of words was made with a certificate's key."""
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):
        return False
    try:
        public.verify(signature, words, ec.ECDSA(HASH))
    except InvalidSignature:
        return False
    return True


def check_pair(files: KeyFiles, remedy: str) -> None:
    """Raise unless a key and a certificate belong together."""
    if read_key(files.key).public_key() != read_certificate(files.certificate).public_key():
        raise ConfigError(f"'{files.key}' and '{files.certificate}' must belong together, got two different: {remedy}")


def server_context(folder: Path, admitted: Iterable[str]) -> ssl.SSLContext:
    """Return the coordinator's TLS settings: version 1.3, and the certificate of an admitted site is required."""
    files = server_files(folder)
    check_pair(files, "run `fedra federate renew`")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(files.certificate, files.key)
    for certificate in admitted:
        context.load_verify_locations(cadata=certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def site_context(folder: Path, authority: str) -> ssl.SSLContext:
    """Return a site's TLS settings: version 1.3, the federation's authority alone, and the site's own certificate."""
    files = site_files(folder)
    check_pair(files, "run `fedra site renew`")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    context.load_cert_chain(files.certificate, files.key)
    return context


def to_pem(certificate: x509.Certificate) -> str:
    """Return a certificate as PEM text."""
    return _to_pem(certificate).decode("ascii")


def _issue_server(folder: Path, names: Sequence[str]) -> None:
    authority, files = authority_files(folder), server_files(folder)
    signer, issuer = read_key(authority.key), read_certificate(authority.certificate)
    public = read_key(files.key).public_key()
    names = list(dict.fromkeys((*names, *LOOPBACK)))
    builder = _certificate(_name(names[0]), issuer.subject, public, SERVER_DAYS, signer.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(name) for name in names]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    write_atomically(files.certificate, _to_pem(builder.sign(signer, HASH)))


def _create_key(path: Path) -> ec.EllipticCurvePrivateKey:
    if path.exists():
        raise ConfigError(f"the key '{path}' must not exist yet: keys are never replaced; use another folder")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(CURVE)
    kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_atomically(path, key.private_bytes(kind, form, serialization.NoEncryption()), private=True)
    return key


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    days: int,
    signer: ec.EllipticCurvePublicKey | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - EARLIER).not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer or public), critical=False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _check_self_signed(certificate: x509.Certificate, where: str) -> None:
    try:
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature):
        raise ConfigError(f"the certificate in {where} must be self-signed, got another's signature") from None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False
