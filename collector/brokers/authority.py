"""A certificate authority of our own, and what it issues to the broker and to devices.

Its key never leaves its directory. Everything is EC P-256 with the extensions that strict verifiers
(Python 3.13 and newer, OpenSSL 3) insist on. This module needs the `broker` extra.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from collector.brokers.config import RENEW_DAYS, Pair
from protocol_spec.programs.system import write_durably

AUTHORITY_DAYS: Final = 7300
SERVER_DAYS: Final = 730
CLIENT_DAYS: Final = 3650
_CLOCK_SKEW: Final = timedelta(hours=1)


class Authority:
    """The authority in a directory; created there on first use."""

    def __init__(self, directory: Path) -> None:
        self.files = Pair(directory / "ca.crt", directory / "ca.key")
        if not self.files.certificate.exists():  # written last
            own = ec.generate_private_key(ec.SECP256R1())
            name = _name("allomfree broker authority")
            made = _builder(name, name, own, AUTHORITY_DAYS, authority=True)
            _write(self.files, made.sign(own, hashes.SHA256()), own)
        self._certificate = read_certificate(self.files.certificate)
        key = serialization.load_pem_private_key(self.files.key.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self.files.key} is not a key of this authority")
        self._key = key

    @staticmethod
    def still_fits(files: Pair, hosts: Sequence[str]) -> bool:
        """Whether a server's certificate is for these names and not yet due for renewal."""
        if not files.certificate.exists() or names_of(files.certificate) != set(hosts):
            return False
        return days_left(files.certificate) >= RENEW_DAYS

    def issue_server(self, files: Pair, hosts: Sequence[str], days: int = SERVER_DAYS) -> None:
        _write(files, *self._issue("allomfree broker", days, hosts))

    def issue_node(self, files: Pair, host: str) -> None:
        """For a node of a cluster, which is client and server to the other nodes."""
        _write(files, *self._issue("allomfree node", SERVER_DAYS, [host], client=True))

    def issue_client(self, name: str) -> tuple[int, str, str]:
        """The serial number, by which it can be revoked; the certificate, and its key."""
        certificate, key = self._issue(name, CLIENT_DAYS, client=True)
        return certificate.serial_number, *_texts(certificate, key)

    def revoke(self, file: Path, serials: Iterable[int]) -> None:
        """Write the list of revoked certificates."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self._certificate.subject,
            last_update=now - _CLOCK_SKEW,
            # The broker reads this file only on reload: an expired list would lock everyone out.
            next_update=now + timedelta(days=AUTHORITY_DAYS),
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder(serial, now - _CLOCK_SKEW).build()
            builder = builder.add_revoked_certificate(entry)
        signed = builder.sign(self._key, hashes.SHA256())
        write_durably(file, signed.public_bytes(serialization.Encoding.PEM))

    def _issue(
        self, subject: str, days: int, hosts: Sequence[str] = (), client: bool = False
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(subject), self._certificate.subject, key, days)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
        uses += [ExtendedKeyUsageOID.CLIENT_AUTH] if client else []
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), False)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(issuer, False).sign(self._key, hashes.SHA256()), key


def read_certificate(file: Path) -> x509.Certificate:
    """The first certificate of a file."""
    return x509.load_pem_x509_certificate(file.read_bytes())


def days_left(file: Path) -> int:
    return (read_certificate(file).not_valid_after_utc - datetime.now(UTC)).days


def names_of(file: Path) -> set[str]:
    """The host names and addresses a certificate is for."""
    extensions = read_certificate(file).extensions
    try:
        found = extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in found.value}


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    authority: bool = False,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        **dict.fromkeys((*unused, "encipher_only", "decipher_only"), False),
    )
    constraints = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _CLOCK_SKEW,
        not_valid_after=now + timedelta(days=days),
    )
    builder = builder.add_extension(constraints, True).add_extension(usage, True)
    return builder.add_extension(identifier, False)


def _write(files: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    first, second = _texts(certificate, key)
    write_durably(files.key, second)
    write_durably(files.certificate, first)


def _texts(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[str, str]:
    """A certificate and its key as PEM."""
    pem = serialization.Encoding.PEM
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = key.private_bytes(pem, pkcs8, plain)
    return certificate.public_bytes(pem).decode(), secret.decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
