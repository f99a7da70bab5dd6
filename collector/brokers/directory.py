"""Everything a broker needs, in one private directory; enrolment and revocation.

    broker.json          the plan, and every user with its hash: all else follows from it
    mosquitto.conf, acl, passwords | nats.conf, users.conf
    nodes/NAME/          of a cluster, one per machine, in place of NATS's files above
    tls/, credentials/, invitations/   see credentials.py
    data/, broker.log    the broker's own

Every change writes broker.json first and the broker's files after it, so the next change repairs
what a crash in between left undone. Passwords are kept only where they are copied from.

The nodes of a cluster authenticate each other by certificates of an authority that issues nothing
else: no device's certificate, and no password, makes anybody a node. Paths in a node's nats.conf
are relative to its directory, in which nats-server is started, unless `--root` says where it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from collector.brokers.config import (
    AUDITOR,
    COLLECTOR,
    PROBE,
    READER,
    READER_PROBE,
    BrokerPlan,
    Kind,
    Pair,
    Role,
    ServerCertificate,
    User,
    files,
    node_place,
)
from collector.brokers.credentials import (
    FILES,
    CredentialFiles,
    authority_in,
    certify,
    new_password,
    password_hash,
)
from collector.errors import StorageFailure
from collector.processes import name_of
from protocol_spec import AllomfreeError
from protocol_spec.programs.invitation import ENDING, DeviceInvitation
from protocol_spec.programs.output import quoted
from protocol_spec.programs.settings import Credentials, SettingsError
from protocol_spec.programs.system import locked, make_private_directory, write_durably
from protocol_spec.topics import is_device

FILE: Final = "broker.json"
LOG: Final = "broker.log"
RELOAD_SECONDS: Final = 10.0
_OWN: Final = {COLLECTOR: Role.COLLECTOR, AUDITOR: Role.AUDITOR, PROBE: Role.DEVICE}
_PROGRAM: Final = {"mosquitto": "mosquitto", "nats": "nats-server"}
_SERVED_BY_NODES: Final = ("server.crt", "server.key", "ca.crt")


class BrokerDirectory:
    """A broker's configuration on disk. Change it inside `changing`."""

    def __init__(self, path: Path, plan: BrokerPlan, users: Iterable[User]) -> None:
        self.path = path
        self.plan = plan
        self.users = {user.name: user for user in users}

    # --- creating, loading and writing ---------------------------------------------------------

    @staticmethod
    @contextmanager
    def changing(path: Path) -> Iterator[None]:
        """Hold the lock: the users are read, changed and written as one step."""
        with storing(path):
            make_private(path)
            with locked(path / "lock"):
                yield

    @staticmethod
    def exists(path: Path) -> bool:
        return (path / FILE).exists()

    @classmethod
    def load(cls, path: Path) -> BrokerDirectory:
        if not cls.exists(path):
            raise SettingsError(
                f"no broker is configured in {path}; nothing was changed. Start with: "
                "allomfree-collector broker-config mosquitto --host HOST"
            )
        try:
            stored = json.loads((path / FILE).read_text(encoding="utf-8"))
            plan = stored["plan"]
            named = plan["campaigns"]
            plan |= {
                "hosts": tuple(plan["hosts"]),
                "root": Path(plan["root"]),
                "nodes": tuple(plan["nodes"]),
                "campaigns": None if named is None else tuple(named),
            }
            users = [User(**{**row, "role": Role(row["role"])}) for row in stored["users"]]
            return cls(path, BrokerPlan(**plan), users)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
            raise StorageFailure(
                f"{path / FILE} cannot be used ({type(error).__name__}); nothing was changed. "
                "Restore it from a backup: it lists every enrolled device"
            ) from None

    @classmethod
    def configure(
        cls, path: Path, plan: BrokerPlan, server: ServerCertificate | None = None
    ) -> BrokerDirectory:
        """Write a broker's files, or write them again; everyone enrolled stays enrolled."""
        made = cls(path, plan, [])
        if cls.exists(path):
            before = cls.load(path)
            made.users = before.users
            for what in ("kind", "auth", "namespace"):
                old, new = getattr(before.plan, what), getattr(plan, what)
                if old != new:
                    raise SettingsError(
                        f"{path} is configured for {what} {old}, not {new}, and devices may be "
                        "enrolled there; nothing was changed. Choose another place with "
                        "--broker-dir"
                    )
        make_private(path)
        for name in ("tls", "credentials", "invitations", "data"):
            make_private(path / name)
        certify(path / "tls", plan, server)
        if plan.nodes:
            made._certify_nodes()
        for name, role in _OWN.items():
            if name not in made.users:
                made._add_user(name, role)
            made._files(name).trust(made._trusted)
        made._files(COLLECTOR).write_configuration(plan)
        made.write()
        return made

    def write(self) -> None:
        """Write broker.json, then what follows from it."""
        plan = {**asdict(self.plan), "root": str(self.plan.root)}
        stored = {"version": 1, "plan": plan, "users": [asdict(u) for u in self.users.values()]}
        write_durably(self.path / FILE, json.dumps(stored, indent=1) + "\n")
        for name, text in files(self.plan, list(self.users.values())).items():
            write_durably(self.path / name, text)
        if self.plan.auth == "certificate":
            revoked = [u.serial for u in self.users.values() if u.revoked and u.serial]
            authority_in(self.path / "tls").revoke(self.path / "tls" / "revoked.crl", revoked)

    def altered(self) -> list[str]:
        """The broker's files that are not as this version writes them."""
        found = []
        for name, text in files(self.plan, list(self.users.values())).items():
            try:
                if (self.path / name).read_text(encoding="utf-8") != text:
                    found.append(name)
            except (OSError, ValueError):
                found.append(name)
        return found

    def bring_up_to_date(self) -> None:
        """Write the files again if another version wrote them, before the broker starts."""
        if self.altered():
            with self.changing(self.path):
                self.load(self.path).write()

    def change_plan(self, **changes: Any) -> None:
        """Write the files for another plan; the collector's configuration follows from it, too."""
        self.plan = replace(self.plan, **changes)
        self._files(COLLECTOR).write_configuration(self.plan)
        self.write()

    # --- users ---------------------------------------------------------------------------------

    @property
    def enrolled(self) -> list[str]:
        """The devices that may connect, without doctor's own."""
        return self._valid(Role.DEVICE, PROBE)

    @property
    def readers(self) -> list[str]:
        """The readers that may connect, without doctor's own."""
        return self._valid(Role.READER, READER_PROBE)

    def _valid(self, role: Role, doctors: str) -> list[str]:
        found = (user for user in self.users.values() if user.role is role and not user.revoked)
        return [user.name for user in found if user.name != doctors]

    def enrol(
        self,
        names: Iterable[str],
        *,
        campaign: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Path]:
        """Write an invitation for each device; the files, by the devices' names."""
        wanted = list(names)
        for name in wanted:
            self.check_new(name)
        brokers = tuple(str(replace(self.plan.url, host=host)) for host in self.plan.names)
        trusted = self._trusted.read_text() if self._trusted.exists() else ""
        made = {}
        for name in wanted:
            user, secret = self._new_user(name, Role.DEVICE)
            self.users[name] = user = replace(user, labels=labels or {})
            made[name] = self.path / "invitations" / f"{name}{ENDING}"
            invitation = DeviceInvitation(
                brokers, self.plan.namespace, name, campaign, authority=trusted, **secret,
                labels=dict(user.labels),
            )  # fmt: skip
            write_durably(made[name], invitation.text())
        self.write()
        return made

    def enrol_readers(self, names: Iterable[str]) -> dict[str, Path]:
        """Create credentials that can read and never report; their full names and directories.

        Along with the first comes one of our own, with which `doctor` tries what readers can do.
        """
        wanted = [f"{READER}{name}" for name in names]
        for name in wanted:
            self.check_new(name, Role.READER)
        for name in [*wanted, *({READER_PROBE} - self.users.keys())]:
            self._add_user(name, Role.READER)
            self._files(name).write_configuration(self.plan)
        self.write()
        return {name: self.credentials_dir(name) for name in wanted}

    def check_new(self, name: str, role: Role = Role.DEVICE) -> None:
        """Raise if this name cannot be enrolled."""
        plain = name.removeprefix(READER) if role is Role.READER else name
        if not is_device(plain):
            raise SettingsError(
                f"invalid {role} name {quoted(plain)}: use 1 to 32 of a-z, 0-9 and -. Nothing was "
                "enrolled"
            )
        if name in self.users:
            revoked = self.users[name].revoked
            why = "it was revoked, see revoke --undo" if revoked else "it is already enrolled"
            raise SettingsError(f"{name} cannot be enrolled: {why}. Nothing was enrolled")

    def revoke(self, name: str, *, undo: bool = False) -> bool:
        """Revoke a credential, or make it valid again; False if it has none here."""
        user = self.users.get(name)
        if user is None or user.role not in (Role.DEVICE, Role.READER) or name == PROBE:
            return False
        self.users[name] = replace(user, revoked=not undo)
        self.write()
        return True

    def _new_user(self, name: str, role: Role) -> tuple[User, dict[str, Any]]:
        """A user, and its secret as the fields of an invitation."""
        if self.plan.auth == "password":
            secret = new_password()
            return User(name, role, password_hash(secret, self.plan.kind)), {"password": secret}
        serial, certificate, key = authority_in(self.path / "tls").issue_client(name)
        return User(name, role, serial=serial), {"certificate": certificate, "key": key}

    def _add_user(self, name: str, role: Role) -> None:
        """One whose credential stays in a directory of its own."""
        created = self._files(name)
        make_private(created.directory)
        self.users[name], secret = self._new_user(name, role)
        for field, text in secret.items():
            write_durably(created.directory / FILES[field], f"{text.rstrip()}\n")
        created.trust(self._trusted)

    # --- credentials and certificates ----------------------------------------------------------

    def credentials_dir(self, name: str) -> Path:
        """Where a credential of our own, or a reader's, is kept."""
        return self._files(name).directory

    def credentials(self, name: str) -> Credentials:
        """A credential, for a connection from this machine."""
        return self._files(name).read()

    def settings(self) -> dict[str, Any]:
        """The collector's settings that connect it to this broker."""
        paths = dict.fromkeys(("password_file", "ca_file", "cert_file", "key_file"))
        broker = {"broker": self.plan.local_url, "namespace": self.plan.namespace}
        if self.plan.stream_port is not None:
            broker["stream"] = self.plan.streams(self.plan.local_url.host)
        return {**broker, "username": COLLECTOR, **paths, **self._files(COLLECTOR).paths()}

    @property
    def authority_digest(self) -> str:
        """Identifies the trusted authority; empty where the system's are trusted."""
        trusted = self._trusted
        return hashlib.sha256(trusted.read_bytes()).hexdigest() if trusted.exists() else ""

    @property
    def _trusted(self) -> Path:
        return self.path / "tls" / "trusted.crt"

    def _files(self, name: str) -> CredentialFiles:
        return CredentialFiles(name, self.path / "credentials" / name)

    @property
    def nodes(self) -> dict[str, Path]:
        """The directory of each node of a cluster, to be copied to its machine."""
        return {node: self.path / node_place(node) for node in self.plan.nodes}

    def _certify_nodes(self) -> None:
        """tls/route.* of each node is its own; tls/server.* is the same for all."""
        own = self.path / "tls"
        make_private(own / "nodes")
        authority = authority_in(own / "nodes")
        make_private(self.path / "nodes")
        for node, directory in self.nodes.items():
            tls = directory / "tls"
            make_private(directory)
            make_private(tls)
            route = Pair(tls / "route.crt", tls / "route.key")
            if not authority.still_fits(route, [node]):
                authority.issue_node(route, node)
            write_durably(tls / "routes.crt", authority.files.certificate.read_bytes())
            for name in _SERVED_BY_NODES:
                if (own / name).exists():
                    write_durably(tls / name, (own / name).read_bytes())

    # --- the running broker --------------------------------------------------------------------

    def reload(self) -> bool:
        """Make the broker reload its files; False if it does not run where we see it, or refuses
        them. For a cluster, all nodes must run here and reload."""
        if self.plan.nodes:
            reloaded = [_reload(place, self.plan.kind) for place in self.nodes.values()]
            return all(reloaded)
        if self.plan.root != self.path:
            return False  # it runs in a container: its process ids are not ours
        return _reload(self.path, self.plan.kind)


def _reload(place: Path, kind: Kind) -> bool:
    log = place / LOG
    try:
        pid = int((place / "broker.pid").read_text(encoding="ascii"))
        if name_of(pid) != _PROGRAM[kind]:
            return False
        size = log.stat().st_size if log.exists() else 0
        os.kill(pid, signal.SIGHUP)
    except (OSError, ValueError):
        return False
    return kind != "nats" or has_reloaded(log, size)


def has_reloaded(log: Path, size: int, seconds: float = RELOAD_SECONDS) -> bool:
    """Whether NATS took over its files: it refuses some changes, and says so only in its log.

    `size` is the log's size before NATS was asked; a smaller one means a new file.
    """
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            with log.open("rb") as file:
                file.seek(size if log.stat().st_size >= size else 0)
                lines = file.read()
        except OSError:
            lines = b""
        if b"Failed to reload server configuration" in lines:
            return False
        if b"Reloaded server configuration" in lines:
            return True
        time.sleep(0.05)
    return False


def make_private(directory: Path) -> None:
    """Create a directory for its owner only; an existing one becomes so."""
    make_private_directory(directory)
    directory.chmod(0o700)


@contextmanager
def storing(directory: Path) -> Iterator[None]:
    """Turn the system's refusal to write into an error that says what to do."""
    try:
        yield
    except AllomfreeError:
        raise
    except OSError as error:
        raise StorageFailure(
            f"{error.filename or directory} cannot be written: {error.strerror}. What was there "
            "before is unchanged; correct its permissions, or choose another directory with "
            "--broker-dir"
        ) from None
