"""The broker's certificate: made here by an authority of our own, or given from elsewhere.

tls/ca.crt, ca.key          the authority; the key never leaves
tls/server.crt, server.key  what the broker serves
tls/trusted.crt             what clients must trust; absent where the system trusts it already
tls/revoked.crl             clients' certificates that are no longer valid
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from collector.brokers.passwords import missing
from collector.brokers.plan import BrokerPlan, Pair, ServerCertificate
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.private_files import write_durably

if TYPE_CHECKING:
    from collector.brokers.authority import Authority


def authority_in(tls: Path) -> Authority:
    """The authority in a directory, created at the first use; needs the broker extra."""
    try:
        from collector.brokers.authority import Authority  # noqa: PLC0415 - needs an extra
    except ImportError:
        raise missing("cryptography") from None
    return Authority(tls)


def certify(tls: Path, plan: BrokerPlan, server: ServerCertificate | None) -> None:
    """Put the broker's certificate in place: the one given, or our own, renewed if need be."""
    pair = Pair(tls / "server.crt", tls / "server.key")
    if server is None and not plan.own_certificate:
        return  # the one given before stays
    if server is None:
        authority = authority_in(tls)
        if not authority.still_fits(pair, plan.certified):
            authority.issue_server(pair, plan.certified)
        trusted = authority.files.certificate.read_bytes()
    else:
        certificate, key = _checked(server.files)
        trusted = b"" if server.authority is None else _read(server.authority)
        write_durably(pair.key, key)
        write_durably(pair.certificate, certificate)
    if trusted:
        write_durably(tls / "trusted.crt", trusted)
    else:
        (tls / "trusted.crt").unlink(missing_ok=True)


def write_revoked(tls: Path, serials: Iterable[int]) -> None:
    """Write the list of clients' certificates that the broker must refuse."""
    authority_in(tls).revoke(tls / "revoked.crl", serials)


def server_days_left(tls: Path) -> int:
    """How many days the broker's certificate is still valid."""
    try:
        from collector.brokers.authority import days_left  # noqa: PLC0415 - needs an extra
    except ImportError:
        raise missing("cryptography") from None
    return days_left(tls / "server.crt")


def server_expires(tls: Path) -> float | None:
    """When the broker's certificate expires, in Unix seconds; None where none can be read."""
    file = tls / "server.crt"
    if not file.exists():
        return None
    try:
        from collector.brokers.authority import read_certificate  # noqa: PLC0415 - needs an extra

        return read_certificate(file).not_valid_after_utc.timestamp()
    except (ImportError, OSError, ValueError):
        return None


def _checked(files: Pair) -> tuple[bytes, bytes]:
    """A certificate and its key as bytes, if they belong together."""
    contents = _read(files.certificate), _read(files.key)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or "the key may need a passphrase"
        raise SettingsError(
            f"{files.certificate} and {files.key} do not work together ({reason}); the broker was "
            "not configured. Give the certificate's own key, without a passphrase"
        ) from None
    return contents


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be read: {error.strerror}; the broker was not configured"
        ) from None
