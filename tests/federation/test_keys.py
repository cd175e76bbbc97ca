"""Keys and certificates: who is trusted, what is secret, what is warned about."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from fedra.errors import ConfigError
from fedra.federation import keys


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    keys.create_authority(folder, "chest")
    keys.create_server(folder, ["fed.example.org", "10.0.0.7"])
    return folder


def new_site(folder: Path, name: str) -> Path:
    keys.create_site(folder, name)
    return folder


def greet(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> str | Exception:
    """One word over TLS, or what either side refused."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.settimeout(5)
                try:
                    with server.wrap_socket(accepted, server_side=True) as secure:
                        secure.sendall(secure.version().encode())
                except OSError:
                    return

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=5) as plain,
                client.wrap_socket(plain, server_hostname=host) as secure,
            ):
                return secure.recv(16).decode()
        except OSError as error:
            return error
        finally:
            thread.join()


def test_an_admitted_site_and_the_server_speak_tls_1_3(coordinator: Path, tmp_path: Path) -> None:
    site = new_site(tmp_path, "st-mary")
    server = keys.server_context(coordinator, [keys.site_files(site).certificate.read_text()])
    client = keys.site_context(site, keys.authority_files(coordinator).certificate.read_text())
    assert greet(server, client) == "TLSv1.3"
    assert greet(server, client, "127.0.0.1") == "TLSv1.3"
    assert greet(server, client, "fed.example.org") == "TLSv1.3"
    refused = greet(server, client, "elsewhere.example.org")
    assert isinstance(refused, ssl.SSLCertVerificationError)


def test_a_site_that_is_not_admitted_is_refused(coordinator: Path, tmp_path: Path) -> None:
    known, other = new_site(tmp_path / "known", "known"), new_site(tmp_path / "other", "known")
    server = keys.server_context(coordinator, [keys.site_files(known).certificate.read_text()])
    client = keys.site_context(other, keys.authority_files(coordinator).certificate.read_text())
    assert isinstance(greet(server, client), OSError)


def test_another_authority_is_refused_by_the_site(coordinator: Path, tmp_path: Path) -> None:
    site = new_site(tmp_path / "site", "st-mary")
    keys.create_authority(tmp_path / "other", "chest")
    server = keys.server_context(coordinator, [keys.site_files(site).certificate.read_text()])
    client = keys.site_context(site, keys.authority_files(tmp_path / "other").certificate.read_text())
    assert isinstance(greet(server, client), ssl.SSLCertVerificationError)


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_keys_are_readable_by_their_owner_alone(coordinator: Path, tmp_path: Path) -> None:
    site = keys.site_files(new_site(tmp_path, "a"))
    for path in (keys.authority_files(coordinator).key, keys.server_files(coordinator).key, site.key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    site.key.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        keys.read_key(site.key)


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    site = keys.site_files(new_site(tmp_path, "a"))
    before = site.key.read_bytes()
    with pytest.raises(ConfigError, match="must not exist yet"):
        keys.create_site(tmp_path, "a")
    assert site.key.read_bytes() == before


def test_a_damaged_key_is_named_and_not_shown(tmp_path: Path) -> None:
    site = keys.site_files(new_site(tmp_path, "a"))
    lines = site.key.read_text().splitlines()
    site.key.write_text("\n".join([lines[0], *lines[2:]]))
    with pytest.raises(ConfigError, match=r"key\.pem") as error:
        keys.read_key(site.key)
    assert not any(line in str(error.value) for line in lines[1:-1])


def test_renewing_keeps_names_and_authority_and_sites_need_nothing_new(coordinator: Path, tmp_path: Path) -> None:
    before = keys.read_certificate(keys.server_files(coordinator).certificate)
    keys.renew_server(coordinator, new_key=True)
    after = keys.read_certificate(keys.server_files(coordinator).certificate)
    assert keys.server_names(after) == ["fed.example.org", "10.0.0.7"]
    assert after.serial_number != before.serial_number
    assert keys.fingerprint(after) != keys.fingerprint(before)
    site = new_site(tmp_path, "a")
    server = keys.server_context(coordinator, [keys.site_files(site).certificate.read_text()])
    client = keys.site_context(site, keys.authority_files(coordinator).certificate.read_text())
    assert greet(server, client) == "TLSv1.3"


def test_a_renewed_site_keeps_its_fingerprint(tmp_path: Path) -> None:
    files = keys.site_files(new_site(tmp_path, "a"))
    before = keys.read_certificate(files.certificate)
    keys.renew_site(tmp_path, "a")
    after = keys.read_certificate(files.certificate)
    assert after.serial_number != before.serial_number
    assert keys.fingerprint(after) == keys.fingerprint(before)


def test_a_fingerprint_has_eight_groups_and_is_compared_without_spaces(tmp_path: Path) -> None:
    found = keys.fingerprint(keys.read_certificate(keys.site_files(new_site(tmp_path, "a")).certificate))
    assert [len(group) for group in found.split()] == [4] * 8
    assert keys.same_fingerprint(found, found.replace(" ", "").upper())
    assert not keys.same_fingerprint(found, found[:-1])


def test_a_certificate_near_its_end_is_warned_about(tmp_path: Path) -> None:
    certificate = keys.read_certificate(keys.site_files(new_site(tmp_path, "a")).certificate)
    end = certificate.not_valid_after_utc
    assert keys.expiry_warning(certificate, "a", "renew") is None
    assert "in 29 days" in (keys.expiry_warning(certificate, "a", "renew", end - timedelta(days=29.5)) or "")
    assert "expired on" in (keys.expiry_warning(certificate, "a", "renew", end + timedelta(days=1)) or "")
    with pytest.raises(ConfigError, match="must be valid"):
        keys.check_site(certificate, "a.site", end + timedelta(days=1))


def test_an_authority_is_not_a_site_and_a_site_not_an_authority(coordinator: Path, tmp_path: Path) -> None:
    authority = keys.read_certificate(keys.authority_files(coordinator).certificate)
    site = keys.read_certificate(keys.site_files(new_site(tmp_path, "a")).certificate)
    server = keys.read_certificate(keys.server_files(coordinator).certificate)
    keys.check_authority(authority, "here")
    keys.check_site(site, "here")
    for check, wrong in ((keys.check_authority, site), (keys.check_site, authority), (keys.check_site, server)):
        with pytest.raises(ConfigError):
            check(wrong, "here")


def test_two_certificates_and_a_key_in_place_of_one_are_refused(tmp_path: Path) -> None:
    files = keys.site_files(new_site(tmp_path, "a"))
    for text in (files.certificate.read_text() * 2, files.key.read_text(), ""):
        with pytest.raises(ConfigError, match="one certificate"):
            keys.parse_certificate(text, "a.site")


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    first, second = new_site(tmp_path / "1", "a"), new_site(tmp_path / "2", "a")
    with pytest.raises(ConfigError, match="belong together"):
        keys.check_pair(keys.KeyFiles(keys.site_files(first).key, keys.site_files(second).certificate), "renew")


def test_a_renewal_that_was_killed_is_repeated(tmp_path: Path) -> None:
    keys.create_authority(tmp_path, "chest")
    keys.create_server(tmp_path, ["a.example.org"])
    keys.server_files(tmp_path).key.unlink()
    keys.renew_server(tmp_path)
    keys.check_pair(keys.server_files(tmp_path), "renew")
