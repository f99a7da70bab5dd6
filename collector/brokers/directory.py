"""A NATS cluster: one directory for each node, to be carried to its machine.

    nodes/NAME/nats.conf, users.conf    the same for all, but for the server's name and address
    nodes/NAME/tls/server.*             what clients see, the same for all
    nodes/NAME/tls/route.*              what the other nodes see, its own
    nodes/NAME/tls/routes.crt           the authority of nodes, and of nobody else

Nodes let each other in by certificates of an authority that issues nothing else: no device's
certificate, and no password, makes anybody a node. Paths in nats.conf are relative to the node's
directory, in which nats-server is started, unless `--root` says where it will be.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from collector.brokers import config
from collector.brokers.config import (
    AUDITOR,
    COLLECTOR,
    PROBE,
    READER,
    READER_PROBE,
    STREAM_PORT,
    BrokerPlan,
    Kind,
    Pair,
    Role,
    ServerCertificate,
    User,
)
from collector.brokers.credentials import (
    CredentialFiles,
    authority_in,
    certify,
    for_mosquitto,
    for_nats,
    new_password,
    server_days_left,
    write_revoked,
)
from collector.errors import StorageFailure
from protocol_spec import AllomfreeError
from protocol_spec.programs.output import quoted
from protocol_spec.programs.settings import Credentials, SettingsError
from protocol_spec.programs.system import locked, make_private_directory, write_durably
from protocol_spec.topics import is_device

HERE: Final = Path()
_CLIENTS: Final = ("server.crt", "server.key", "ca.crt")


def with_nodes(given: Mapping[str, Any], before: BrokerPlan | None) -> dict[str, Any]:
    """The options of a plan, with those that follow from its nodes, now or before."""
    known = before.nodes if before is not None else ()
    options = dict(given)
    nodes = options.get("nodes")
    if not nodes and not known:
        return options
    if options.get("bind") not in (None, "0.0.0.0"):  # noqa: S104 - only compared
        raise SettingsError(
            "--bind is for one broker, and every node of a cluster has an address of its own; "
            "nothing was written. Leave it out"
        )
    options["bind"] = ""
    if nodes and options.get("hosts") is None and (before is None or before.hosts == known):
        options["hosts"] = nodes
    if not known:  # it becomes one
        options["root"] = options.get("root") or HERE
        stream = options.get("stream_port") or (before.stream_port if before else None)
        options["stream_port"] = stream or STREAM_PORT
    return options


def node_directories(path: Path, plan: BrokerPlan) -> dict[str, Path]:
    """Where each node's files are."""
    return {node: path / _place(node) for node in plan.nodes}


def node_places(path: Path, plan: BrokerPlan) -> dict[str, str]:
    """The same as text."""
    return {node: str(directory) for node, directory in node_directories(path, plan).items()}


def prepare_nodes(path: Path, plan: BrokerPlan) -> None:
    """Make the nodes' directories, and put their certificates there."""
    if not plan.nodes:
        return
    authority_dir = path / "tls" / "nodes"
    _make_private(authority_dir)
    authority = authority_in(authority_dir)
    for node, directory in node_directories(path, plan).items():
        for place in (path / "nodes", directory, directory / "tls"):
            _make_private(place)
        route = Pair(directory / "tls" / "route.crt", directory / "tls" / "route.key")
        if not authority.still_fits(route, [node]):
            authority.issue_node(route, node)
        trusted = authority.files.certificate.read_bytes()
        write_durably(directory / "tls" / "routes.crt", trusted)
        for name in _CLIENTS:
            if (path / "tls" / name).exists():
                write_durably(directory / "tls" / name, (path / "tls" / name).read_bytes())


def cluster_files(plan: BrokerPlan, users: Sequence[User]) -> dict[str, str]:
    """Every file that the nodes read, by its name in the broker's directory."""
    made: dict[str, str] = {}
    for node in plan.nodes:
        here = replace(plan, bind=node if _is_loopback(node) else "")
        texts = config.nats_files(here, users, server=f"allomfree-{node}", more=_cluster(here))
        made |= {f"{_place(node)}/{name}": text for name, text in texts.items()}
    return made


def _cluster(plan: BrokerPlan) -> str:
    routes = [f"tls://{_in_url(node)}:{plan.cluster_port}" for node in plan.nodes]
    tls = {name: str(plan.root / "tls" / file) for name, file in _ROUTE.items()}
    lines = [
        "cluster {",
        "  name: allomfree",
        f"  listen: {json.dumps(config.listener(plan, plan.cluster_port))}",
        f"  routes: {json.dumps(routes)}",
        "  no_advertise: true   # clients know all nodes already",
        "  tls {",
        *(f"    {name}: {json.dumps(file)}" for name, file in tls.items()),
        "    verify: true   # in both directions",
        "    timeout: 10",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


_ROUTE: Final = {"cert_file": "route.crt", "key_file": "route.key", "ca_file": "routes.crt"}


def _place(node: str) -> str:
    return f"nodes/{node.replace(':', '-')}"


def _in_url(node: str) -> str:
    return f"[{node}]" if ":" in node else node


def _is_loopback(node: str) -> bool:
    """Several nodes on one machine, to try it: each listens at an address of its own."""
    try:
        return ipaddress.ip_address(node).is_loopback
    except ValueError:
        return False


def _make_private(directory: Path) -> None:
    make_private_directory(directory)
    directory.chmod(0o700)


# --- Everything a broker needs, in one private directory; enrolment and revocation.


FILE: Final = "broker.json"
LOG: Final = "broker.log"
_OWN: Final = {COLLECTOR: Role.COLLECTOR, AUDITOR: Role.AUDITOR, PROBE: Role.DEVICE}
_RENDER: Final = {"mosquitto": config.mosquitto_files, "nats": config.nats_files}
_HASH: Final = {"mosquitto": for_mosquitto, "nats": for_nats}
_PROGRAM: Final = {"mosquitto": "mosquitto", "nats": "nats-server"}


class BrokerDirectory:
    """A broker's configuration on disk."""

    def __init__(self, path: Path, plan: BrokerPlan, users: Iterable[User]) -> None:
        self.path = path
        self.plan = plan
        self.users = {user.name: user for user in users}

    # --- creating and loading ------------------------------------------------------------------

    @staticmethod
    @contextmanager
    def changing(path: Path) -> Iterator[None]:
        """Hold the lock: who is enrolled is read, changed and written as one step."""
        with storing(path):
            make_private(path)
            with locked(path / "lock"):
                yield

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether a broker was configured here."""
        return (path / FILE).exists()

    @classmethod
    def load(cls, path: Path) -> BrokerDirectory:
        """What was configured here before."""
        if not cls.exists(path):
            raise SettingsError(
                f"no broker is configured in {path}; nothing was changed. Start with: "
                "allomfree-collector broker-config mosquitto --host HOST"
            )
        try:
            stored = json.loads((path / FILE).read_text(encoding="utf-8"))
            plan = stored["plan"]
            plan |= {"hosts": tuple(plan["hosts"]), "root": Path(plan["root"])}
            named = plan.get("campaigns")
            plan["nodes"] = tuple(plan.get("nodes", ()))
            plan["campaigns"] = None if named is None else tuple(named)
            users = [User(**{**row, "role": Role(row["role"])}) for row in stored["users"]]
            return cls(path, BrokerPlan(**plan), users)
        except (ValueError, TypeError, KeyError, OSError) as error:
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
            made._check_same(before.plan)
        with storing(path):
            for directory in (path, path / "tls", path / "credentials", path / "data"):
                make_private(directory)
            certify(path / "tls", plan, server)
            prepare_nodes(path, plan)
            for name, role in _OWN.items():
                if name not in made.users:
                    made._add_user(name, role)
                made._files(name).trust(made._trusted)
            made._files(COLLECTOR).write_configuration(plan)
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
        """Write broker.json, then what follows from it."""
        plan = {**asdict(self.plan), "root": str(self.plan.root)}
        stored = {"version": 1, "plan": plan, "users": [asdict(u) for u in self.users.values()]}
        write_durably(self.path / FILE, json.dumps(stored, indent=1) + "\n")
        for name, text in rendered(self).items():
            write_durably(self.path / name, text)
        if self.plan.auth == "certificate":
            revoked = [u.serial for u in self.users.values() if u.revoked and u.serial]
            write_revoked(self.path / "tls", revoked)

    # --- users ---------------------------------------------------------------------------------

    @property
    def enrolled(self) -> list[str]:
        """The devices that may connect, without our own for tests."""
        users = self.users.values()
        return [u.name for u in users if is_device(u.name) and u.name != PROBE and not u.revoked]

    def enrol(self, names: Iterable[str], role: Role = Role.DEVICE) -> list[Path]:
        """Create credentials for devices or readers; returns the directories to carry to them."""
        wanted = list(names)
        for name in wanted:
            self._check_new(name, role)
        with storing(self.path):
            for name in wanted:
                self._add_user(name, role)
                self._files(name).write_configuration(self.plan)
            self.write()
        return [self.credentials_dir(name) for name in wanted]

    def _check_new(self, name: str, role: Role) -> None:
        plain = name.removeprefix(READER) if role is Role.READER else name
        if not is_device(plain):
            raise SettingsError(
                f"invalid {role} name {quoted(plain)}: use 1 to 32 of a-z, 0-9 and -. Nothing was "
                "enrolled"
            )
        if name in self.users:
            revoked = self.users[name].revoked
            why = "it was revoked, see revoke --undo" if revoked else "it is enrolled already"
            raise SettingsError(f"{name} cannot be enrolled: {why}. Nothing was enrolled")

    def revoke(self, name: str, *, undo: bool = False) -> bool:
        """Revoke a device's credential, or make it valid again; False if it has none here."""
        user = self.users.get(name)
        if user is None or user.role not in (Role.DEVICE, Role.READER) or name == PROBE:
            return False
        self.users[name] = replace(user, revoked=not undo)
        with storing(self.path):
            self.write()
        return True

    def _add_user(self, name: str, role: Role) -> None:
        files = self._files(name)
        make_private(files.directory)
        password, serial = None, None
        if self.plan.auth == "password":
            secret = new_password()
            files.write_password(secret)
            password = _HASH[self.plan.kind](secret)
        else:
            serial = authority_in(self.path / "tls").issue_client(files.certificate, name)
        files.trust(self._trusted)
        self.users[name] = User(name, role, password, serial)

    # --- credentials and certificates ----------------------------------------------------------

    def credentials_dir(self, name: str) -> Path:
        """Where a name's credential is kept until it is carried away."""
        return self._files(name).directory

    def credentials(self, name: str) -> Credentials:
        """A name's credential, for a connection from this machine."""
        return self._files(name).read()

    def settings(self, name: str = COLLECTOR) -> dict[str, Any]:
        """The collector's settings that connect under a name."""
        files = dict.fromkeys(("password_file", "ca_file", "cert_file", "key_file"))
        broker = {"broker": self.plan.local_url, "namespace": self.plan.namespace}
        if self.plan.stream_port is not None:
            broker["stream"] = self.plan.streams(self.plan.local_url.host)
        return {**broker, "username": name, **files, **self._files(name).paths()}

    @property
    def authority_digest(self) -> str:
        """Tells one trusted authority from another; empty where the system's are trusted."""
        trusted = self._trusted
        return hashlib.sha256(trusted.read_bytes()).hexdigest() if trusted.exists() else ""

    def certificate_days_left(self) -> int:
        """How many days the broker's certificate is still valid."""
        return server_days_left(self.path / "tls")

    @property
    def _trusted(self) -> Path:
        return self.path / "tls" / "trusted.crt"

    def _files(self, name: str) -> CredentialFiles:
        return CredentialFiles(name, self.path / "credentials" / name)

    # --- the running broker --------------------------------------------------------------------

    def reload(self) -> bool:
        """Have the broker read its files again; False if it does not run where we see it, or
        cannot take them over. Of a cluster, that is so unless all nodes run here and do."""
        if self.plan.nodes:
            places = node_directories(self.path, self.plan).values()
            done = [_reload(place, self.plan.kind) for place in places]
            return all(done)
        if self.plan.root != self.path:
            return False  # it runs in a container: its process numbers are not ours
        return _reload(self.path, self.plan.kind)


def _reload(place: Path, kind: Kind) -> bool:
    try:
        pid = int((place / "broker.pid").read_text(encoding="ascii"))
        program = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
        if program != _PROGRAM[kind]:
            return False
        said = log_size(place)
        os.kill(pid, signal.SIGHUP)
    except (OSError, ValueError):
        return False
    return kind != "nats" or config.has_reloaded(place / LOG, said)


def rendered(configured: BrokerDirectory) -> dict[str, str]:
    """The broker's files, by name, as they follow from broker.json."""
    render = cluster_files if configured.plan.nodes else _RENDER[configured.plan.kind]
    return render(configured.plan, list(configured.users.values()))


def log_size(directory: Path) -> int:
    """How much a broker has written into its log."""
    try:
        return (directory / LOG).stat().st_size
    except OSError:
        return 0


def make_private(directory: Path) -> None:
    """Create a directory for its owner only; one that exists becomes so."""
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


# --- Keeps a broker's files as they should be: after an upgrade, and when a campaign is opened.


def altered(configured: BrokerDirectory) -> list[str]:
    """The broker's files that are not as this version writes them."""
    files = rendered(configured).items()
    return [name for name, text in files if _read(configured.path / name) != text]


def bring_up_to_date(configured: BrokerDirectory) -> None:
    """Write the files again if an earlier version wrote them, before the broker starts."""
    if altered(configured):
        with BrokerDirectory.changing(configured.path):
            BrokerDirectory.load(configured.path).write()


def name_campaigns(configured: BrokerDirectory, campaigns: Iterable[str]) -> None:
    """Let devices report to these campaigns, and to no others where the broker can tell."""
    configured.plan = replace(configured.plan, campaigns=tuple(sorted(campaigns)))
    with storing(configured.path):
        configured.write()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


# --- Readers, such as dashboards: they read results, and nothing that they write is ever counted.


def enrol_readers(configured: BrokerDirectory, names: Iterable[str]) -> dict[str, Path]:
    """Create credentials that can read and never report; the names they got, and where.

    With the first one comes another of our own, with which `doctor` tries what readers can do.
    """
    wanted = [f"{READER}{name}" for name in names]
    ours = [READER_PROBE] if READER_PROBE not in configured.users else []
    places = configured.enrol([*wanted, *ours], Role.READER)
    return dict(zip(wanted, places))


def readers(configured: BrokerDirectory) -> list[str]:
    """The readers that may connect, without our own."""
    found = (user for user in configured.users.values() if user.role is Role.READER)
    return [user.name for user in found if not user.revoked and user.name != READER_PROBE]


def announce_below(configured: BrokerDirectory, home_assistant: str | None) -> None:
    """Let the collector announce campaigns to Home Assistant, and readers read that."""
    configured.plan = replace(configured.plan, home_assistant=home_assistant)
    own = CredentialFiles(COLLECTOR, configured.credentials_dir(COLLECTOR))
    with storing(configured.path):
        own.write_configuration(configured.plan)
        configured.write()
