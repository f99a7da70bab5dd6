"""Everything a broker needs, in one private directory; enrolment and revocation.

    broker.json          what was decided, and every name with its hash: all else follows from it
    mosquitto.conf, acl, passwords | nats.conf, users.conf
    tls/                 the authority, the broker's certificate, revoked clients
    credentials/NAME/    what to carry to a device: configuration, secret, authority
    data/, broker.log    the broker's own

Every change writes broker.json first and the broker's files after it, so a crash in between is
mended by the next change. Passwords are kept only where they are carried from.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collector.brokers import mosquitto, nats
from collector.brokers.access import AUDITOR, COLLECTOR, PROBE, Role
from collector.brokers.files import make_directory, write_private
from collector.brokers.passwords import for_mosquitto, for_nats, missing, new_password
from collector.brokers.plan import BrokerPlan, Pair, ServerCertificate, User
from collector.errors import StorageFailure
from protocol_spec.programs.address import Credentials
from protocol_spec.programs.errors import SettingsError
from protocol_spec.topics import is_device

if TYPE_CHECKING:
    from collector.brokers.authority import Authority

FILE: Final = "broker.json"
ON_DEVICE: Final = Path("/etc/allomfree")
MEMORY_ON_DEVICE: Final = Path("/var/lib/allomfree-edge")
_OWN: Final = {COLLECTOR: Role.COLLECTOR, AUDITOR: Role.AUDITOR, PROBE: Role.DEVICE}
_RENDER: Final = {"mosquitto": mosquitto.files, "nats": nats.files}
_HASH: Final = {"mosquitto": for_mosquitto, "nats": for_nats}
_PROGRAM: Final = {"mosquitto": "mosquitto", "nats": "nats-server"}


class BrokerDirectory:
    """A broker's configuration on disk."""

    def __init__(self, path: Path, plan: BrokerPlan, users: Iterable[User]) -> None:
        self.path = path
        self.plan = plan
        self.users = {user.name: user for user in users}

    # --- making and finding it -----------------------------------------------------------------

    @staticmethod
    @contextmanager
    def changing(path: Path) -> Iterator[None]:
        """Be the only one who changes it: who is enrolled is read, changed and written again."""
        make_directory(path)
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @property
    def authority_digest(self) -> str:
        """What tells one trusted authority from another; empty where the system knows it."""
        trusted = self.path / "tls" / "trusted.crt"
        return hashlib.sha256(trusted.read_bytes()).hexdigest() if trusted.exists() else ""

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether a broker was configured here."""
        return (path / FILE).exists()

    @classmethod
    def load(cls, path: Path) -> BrokerDirectory:
        """What was configured here before."""
        if not cls.exists(path):
            raise SettingsError(
                f"no broker is configured in {path}; nothing was changed. Begin with: "
                "allomfree-collector broker-config mosquitto --host HOST"
            )
        try:
            stored = json.loads((path / FILE).read_text(encoding="utf-8"))
            plan = stored["plan"]
            plan |= {"hosts": tuple(plan["hosts"]), "root": Path(plan["root"])}
            users = [User(**{**row, "role": Role(row["role"])}) for row in stored["users"]]
            return cls(path, BrokerPlan(**plan), users)
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise StorageFailure(
                f"{path / FILE} cannot be used ({type(error).__name__}); nothing was changed. "
                "Restore it from a backup: it is the list of everybody enrolled"
            ) from None

    @classmethod
    def configure(
        cls, path: Path, plan: BrokerPlan, server: ServerCertificate | None = None
    ) -> BrokerDirectory:
        """Write a broker's files, or write them again; who is enrolled stays so."""
        made = cls(path, plan, [])
        if cls.exists(path):
            before = cls.load(path)
            made.users = before.users
            made._check_same(before.plan)
        for directory in (path, path / "tls", path / "credentials", path / "data"):
            make_directory(directory)
        made._certify(server)
        for name, role in _OWN.items():
            if name not in made.users:
                made._admit(name, role)
            made._trust(name)
        made._carry(COLLECTOR)
        made.write()
        return made

    def _check_same(self, before: BrokerPlan) -> None:
        for what in ("kind", "auth", "namespace"):
            old, new = getattr(before, what), getattr(self.plan, what)
            if old != new:
                raise SettingsError(
                    f"{self.path} is configured for {what} {old}, not {new}, and devices may be "
                    "enrolled there; nothing was changed. Choose another place with --broker-dir"
                )

    def write(self) -> None:
        """broker.json, then what follows from it."""
        plan = {**asdict(self.plan), "root": str(self.plan.root)}
        stored = {"version": 1, "plan": plan, "users": [asdict(u) for u in self.users.values()]}
        write_private(self.path / FILE, json.dumps(stored, indent=1) + "\n")
        for name, text in _RENDER[self.plan.kind](self.plan, list(self.users.values())).items():
            write_private(self.path / name, text)
        if self.plan.auth == "certificate":
            revoked = [u.serial for u in self.users.values() if u.revoked and u.serial]
            self._authority().revoke(self.path / "tls" / "revoked.crl", revoked)

    # --- who is known --------------------------------------------------------------------------

    def enrol(self, names: Iterable[str]) -> list[Path]:
        """New credentials for devices; returns the directories to carry to them."""
        wanted = list(names)
        for name in wanted:
            self._check_new(name)
        for name in wanted:
            self._admit(name, Role.DEVICE)
            self._carry(name)
        self.write()
        return [self.credentials_dir(name) for name in wanted]

    def _check_new(self, name: str) -> None:
        if not is_device(name):
            raise SettingsError(
                f"{name!r} is no device name: it is 1 to 32 of a-z, 0-9 and -. Nobody was enrolled"
            )
        if name in self.users:
            known = self.users[name]
            undo = "it was revoked: see revoke --undo" if known.revoked else "it is enrolled"
            raise SettingsError(f"{name} cannot be enrolled: {undo}. Nobody was enrolled")

    def revoke(self, name: str, *, undo: bool = False) -> bool:
        """Take a device's credential back, or give it again; False if it has none here."""
        user = self.users.get(name)
        if user is None or user.role is not Role.DEVICE or name == PROBE:
            return False
        self.users[name] = replace(user, revoked=not undo)
        self.write()
        return True

    def credentials_dir(self, name: str) -> Path:
        """Where a name's credential is kept until it is carried away."""
        return self.path / "credentials" / name

    def credentials(self, name: str) -> Credentials:
        """A name's credential, for a connection from here."""
        directory = self.credentials_dir(name)
        password = directory / "password"
        pair = (directory / "client.crt", directory / "client.key")
        files = [str(file) if file.exists() else None for file in (directory / "ca.crt", *pair)]
        text = password.read_text(encoding="utf-8").strip() if password.exists() else None
        return Credentials(name, text, *files)

    def settings(self, name: str = COLLECTOR) -> dict[str, Any]:
        """The same as settings of the collector."""
        files = self.credentials(name)
        password = self.credentials_dir(name) / "password"
        return {
            "broker": self.plan.local_url,
            "namespace": self.plan.namespace,
            "username": name,
            "password_file": password if password.exists() else None,
            "ca_file": None if files.ca_file is None else Path(files.ca_file),
            "cert_file": None if files.cert_file is None else Path(files.cert_file),
            "key_file": None if files.key_file is None else Path(files.key_file),
        }

    def _admit(self, name: str, role: Role) -> None:
        from_here = self.credentials_dir(name)
        make_directory(from_here)
        password, serial = None, None
        if self.plan.auth == "password":
            secret = new_password()
            write_private(from_here / "password", f"{secret}\n")
            password = _HASH[self.plan.kind](secret)
        else:
            serial = self._authority().issue_client(
                Pair(from_here / "client.crt", from_here / "client.key"), name
            )
        self._trust(name)
        self.users[name] = User(name, role, password, serial)

    def _trust(self, name: str) -> None:
        """The authority that goes with a credential; none where the system knows it."""
        trusted, carried = self.path / "tls" / "trusted.crt", self.credentials_dir(name) / "ca.crt"
        if trusted.exists():
            write_private(carried, trusted.read_bytes())
        else:
            carried.unlink(missing_ok=True)

    def _carry(self, name: str) -> None:
        """The configuration that goes with a credential."""
        directory = self.credentials_dir(name)
        collector = name == COLLECTOR
        place = directory.resolve() if collector else ON_DEVICE
        lines = [f'username = "{name}"']
        if collector:
            lines[:0] = [f'broker = "{self.plan.url}"', f'namespace = "{self.plan.namespace}"']
        else:  # the service and the owner's commands must find the same memory
            lines.insert(0, f'state_dir = "{MEMORY_ON_DEVICE}"')
        for setting, file in (
            ("password_file", "password"),
            ("ca_file", "ca.crt"),
            ("cert_file", "client.crt"),
            ("key_file", "client.key"),
        ):
            if (directory / file).exists():
                lines.append(f"{setting} = {json.dumps(str(place / file))}")
        write_private(
            directory / f"{'collector' if collector else 'edge'}.toml", "\n".join(lines) + "\n"
        )

    # --- certificates --------------------------------------------------------------------------

    def _authority(self) -> Authority:
        try:
            from collector.brokers.authority import Authority  # noqa: PLC0415 - needs an extra
        except ImportError:
            raise missing("cryptography") from None
        return Authority(self.path / "tls")

    def _certify(self, server: ServerCertificate | None) -> None:
        """The broker's certificate: the one given, or one of our own that fits and will last."""
        tls = self.path / "tls"
        pair = Pair(tls / "server.crt", tls / "server.key")
        if server is None and not self.plan.own_certificate:
            return  # the one given before stays
        if server is None:
            authority = self._authority()
            if not authority.still_fits(pair, self.plan.certified):
                authority.issue_server(pair, self.plan.certified)
            trusted = authority.files.certificate.read_bytes()
        else:
            certificate, key = _checked(server.files)
            trusted = b"" if server.authority is None else _read(server.authority)
            write_private(pair.key, key)
            write_private(pair.certificate, certificate)
        if trusted:
            write_private(tls / "trusted.crt", trusted)
        else:
            (tls / "trusted.crt").unlink(missing_ok=True)

    def certificate_days_left(self) -> int:
        """How long the broker's certificate is good for."""
        try:
            from collector.brokers.authority import days_left  # noqa: PLC0415 - needs an extra
        except ImportError:
            raise missing("cryptography") from None
        return days_left(self.path / "tls" / "server.crt")

    # --- the running broker --------------------------------------------------------------------

    def reload(self) -> bool:
        """Tell the broker to read its files again; False if it does not run where we see it."""
        if self.plan.root != self.path:
            return False  # it runs in a container: its process numbers are not ours
        try:
            pid = int((self.path / "broker.pid").read_text(encoding="ascii"))
            program = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
            if program != _PROGRAM[self.plan.kind]:
                return False
            os.kill(pid, signal.SIGHUP)
        except (OSError, ValueError):
            return False
        return True


def _checked(files: Pair) -> tuple[bytes, bytes]:
    """A certificate and a key that belong together, as bytes."""
    contents = _read(files.certificate), _read(files.key)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or "the key may need a passphrase"
        raise SettingsError(
            f"{files.certificate} and {files.key} cannot serve together ({reason}); the broker "
            "was not configured. Give the certificate's own key, without a passphrase"
        ) from None
    return contents


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be read: {error.strerror}; the broker was not configured"
        ) from None
