"""The broker's certificate, and the credentials of its clients, as files.

tls/ca.crt, ca.key          our own authority; the key never leaves
tls/server.crt, server.key  what the broker serves: issued by us, or given
tls/trusted.crt             what clients must trust; absent where the system already does
tls/revoked.crl             client certificates that are no longer valid
credentials/NAME/           of the collector, of doctor's test users, and of readers: password, or
                            client.crt and client.key; ca.crt, a copy of trusted.crt; and
                            collector.toml or reader.toml, which name them
invitations/NAME.invitation a device's, until it is given to the device; see
                            protocol_spec.programs.invitation

Passwords are long and random, so that even a cheap hash cannot be reversed. The cheap hash matters:
a fleet that reconnects after the broker's restart means thousands of hashes at once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collector.brokers.config import COLLECTOR, BrokerPlan, Kind, Pair, ServerCertificate
from protocol_spec.programs.cli import install_command
from protocol_spec.programs.settings import Credentials, SettingsError
from protocol_spec.programs.system import write_durably

if TYPE_CHECKING:
    from collector.brokers.authority import Authority

_MOSQUITTO_ROUNDS: Final = 101  # mosquitto_passwd's own
_BCRYPT_COST: Final = 5
FILES: Final = {"password": "password", "certificate": "client.crt", "key": "client.key"}
_SETTINGS: Final = {
    "password_file": FILES["password"],
    "ca_file": "ca.crt",
    "cert_file": FILES["certificate"],
    "key_file": FILES["key"],
}

# --- the broker's certificate ----------------------------------------------------------------


def authority_in(tls: Path) -> Authority:
    """The authority in a directory, created on first use; needs the broker extra."""
    try:
        from collector.brokers.authority import Authority  # noqa: PLC0415 - needs an extra
    except ImportError:
        raise _missing("cryptography") from None
    return Authority(tls)


def certify(tls: Path, plan: BrokerPlan, server: ServerCertificate | None) -> None:
    """Install the broker's certificate: the one given, or our own, renewed if it is due."""
    pair = Pair(tls / "server.crt", tls / "server.key")
    if server is None and not plan.own_certificate:
        return  # the one given before stays
    if server is None:
        authority = authority_in(tls)
        if not authority.still_fits(pair, plan.certified):
            authority.issue_server(pair, plan.certified)
        trusted = authority.files.certificate.read_bytes()
    else:
        certificate, key = _read(server.files.certificate), _read(server.files.key)
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(server.files.certificate, server.files.key, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or "the key may need a passphrase"
            raise SettingsError(
                f"{server.files.certificate} and {server.files.key} do not work together "
                f"({reason}); the broker was not configured. Give the certificate's own key, "
                "without a passphrase"
            ) from None
        trusted = b"" if server.authority is None else _read(server.authority)
        write_durably(pair.key, key)
        write_durably(pair.certificate, certificate)
    if trusted:
        write_durably(tls / "trusted.crt", trusted)
    else:
        (tls / "trusted.crt").unlink(missing_ok=True)


def server_expires(tls: Path) -> float | None:
    """When the broker's certificate expires, in Unix seconds; None if none can be read."""
    try:  # the one way of the standard library: the running collector loads no cryptography
        known = ssl._ssl._test_decode_cert(str(tls / "server.crt"))  # type: ignore[attr-defined]
        return float(ssl.cert_time_to_seconds(known["notAfter"]))
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be read: {error.strerror}; the broker was not configured"
        ) from None


# --- clients ---------------------------------------------------------------------------------


def new_password() -> str:
    """192 random bits as text."""
    return secrets.token_urlsafe(24)


def password_hash(password: str, kind: Kind) -> str:
    """As the broker stores it: PBKDF2 with SHA-512 for mosquitto, bcrypt for NATS."""
    if kind == "mosquitto":
        salt = os.urandom(12)
        digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _MOSQUITTO_ROUNDS)
        encoded = [base64.b64encode(part).decode() for part in (salt, digest)]
        return f"$7${_MOSQUITTO_ROUNDS}${encoded[0]}${encoded[1]}"
    try:
        import bcrypt  # noqa: PLC0415 - only for NATS
    except ImportError:
        raise _missing("bcrypt") from None
    hashed: bytes = bcrypt.hashpw(password.encode(), bcrypt.gensalt(_BCRYPT_COST, prefix=b"2a"))
    return hashed.decode()


def _missing(library: str) -> SettingsError:
    return SettingsError(
        f"{library} is not installed; nothing was changed. Run: {install_command('broker')}"
    )


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """One client's credential, to be copied to its device or used by one of our own."""

    name: str
    directory: Path

    def paths(self) -> dict[str, Path]:
        """The files that exist, by the setting that names each."""
        found = {setting: self.directory / file for setting, file in _SETTINGS.items()}
        return {setting: file for setting, file in found.items() if file.exists()}

    def read(self) -> Credentials:
        """The credential, for a connection from this machine."""
        paths = self.paths()
        secret = paths.pop("password_file", None)
        password = None if secret is None else secret.read_text(encoding="utf-8").strip()
        files = {setting: str(file) for setting, file in paths.items()}
        return Credentials(self.name, password, **files)

    def trust(self, trusted: Path) -> None:
        """Copy the authority that the broker's certificate is checked with, if there is one."""
        copy = self.directory / "ca.crt"
        if trusted.exists():
            write_durably(copy, trusted.read_bytes())
        else:
            copy.unlink(missing_ok=True)

    def write_configuration(self, plan: BrokerPlan) -> None:
        """Write the settings that go with the credential, for the collector or for a dashboard."""
        if self.name == COLLECTOR:
            lines = [f'broker = "{plan.url}"', f'namespace = "{plan.namespace}"']
            if plan.home_assistant:
                lines.append(f'home_assistant = "{plan.home_assistant}"')
            streams = plan.streams(plan.url.host)
            if streams is not None:
                lines.append(f'stream = "{",".join(map(str, streams))}"')
            place, file = self.directory.resolve(), "collector.toml"
        else:  # what somebody types into a dashboard
            lines = [f'host = "{plan.hosts[0]}"', f"port = {plan.port}", "tls = true"]
            place, file = Path(), "reader.toml"
        lines.append(f'username = "{self.name}"')
        for setting, path in self.paths().items():
            lines.append(f"{setting} = {json.dumps(str(place / path.name))}")
        write_durably(self.directory / file, "\n".join(lines) + "\n")
