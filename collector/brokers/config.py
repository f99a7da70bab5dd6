"""A broker's configuration: who may do what, the plan, and the files of mosquitto and NATS.

Access follows least privilege and is stated once for every kind of broker. A device publishes its
reports and requests under its own name and nowhere else, and reads only what is for everyone or for
itself. A reader, such as a dashboard, reads what is for everyone and publishes nothing that is
counted: no device can have its name. The collector cannot publish reports, only markers, under a
name that no device can have. The auditor, used only by `doctor` and to set NATS's limits, may do
everything, but only below names that no campaign can have: there it shows whether the others are
kept to their limits. (On mosquitto everyone can also read what every device can, because patterns
apply to all users.)
"""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

from collector.links.stream import required_subjects
from collector.settings import DISCOVERY_PREFIX, STREAM_PORT, StreamAddress
from protocol_spec.programs.invitation import check_labels
from protocol_spec.programs.settings import BrokerUrl, SettingsError, is_loopback
from protocol_spec.topics import (
    CANARY_CAMPAIGN,
    NAMESPACE,
    canary,
    everything_of,
    for_all,
    from_all_devices,
    from_device,
    is_campaign,
    marker,
    to_device,
)

Kind = Literal["mosquitto", "nats"]
Auth = Literal["password", "certificate"]

KINDS: Final[tuple[Kind, ...]] = ("mosquitto", "nats")
AUTHS: Final[tuple[Auth, ...]] = ("password", "certificate")

# --- access ----------------------------------------------------------------------------------

COLLECTOR: Final = "Collector"  # capitals: no device can have such a name
AUDITOR: Final = "Auditor"
PROBE: Final = "doctor-probe"
READER: Final = "Reader-"  # the prefix of every reader's name
READER_PROBE: Final = f"{READER}doctor"
BIRTH: Final = "homeassistant/status"  # Home Assistant's default birth and will topic
EVERY_CAMPAIGN: Final = ("+",)
TRY: Final = ("doctor", "try")  # where `doctor` tries what a device may write
UNOPENED_CAMPAIGN: Final = f"{CANARY_CAMPAIGN}-closed"  # probed as a campaign that was never opened


class Role(StrEnum):
    DEVICE = "device"
    COLLECTOR = "collector"
    AUDITOR = "auditor"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Access:
    """Topic filters, in MQTT's notation."""

    write: tuple[str, ...]
    read: tuple[str, ...]


def access(role: Role, name: str, namespace: str, *, home_assistant: str | None = None) -> Access:
    """What a client of this role and name may publish and read."""
    everyone = for_all(namespace)
    if role is Role.DEVICE:
        return device_access(name, namespace)
    if role is Role.AUDITOR:
        everything = tuple(
            everything_of(c, namespace) for c in (CANARY_CAMPAIGN, UNOPENED_CAMPAIGN)
        )
        return Access(everything, everything)
    if role is Role.COLLECTOR:
        discovery = (f"{home_assistant}/device/+/config",) if home_assistant else ()
        written = (everyone, to_device("+", namespace), marker(namespace), *discovery)
        return Access(written, (everyone, from_all_devices(namespace)))
    if not home_assistant:
        return Access((), (everyone,))
    # Some brokers refuse the whole connection if they refuse Home Assistant's last will.
    births = tuple(dict.fromkeys((f"{home_assistant}/status", BIRTH)))
    return Access(births, (everyone, f"{home_assistant}/#"))


def device_access(name: str, namespace: str, campaigns: Sequence[str] = EVERY_CAMPAIGN) -> Access:
    """What a device may publish, in these campaigns, and read, in every one. `doctor` tries it on a
    topic of its own that no collector reads."""
    written = [topic for known in campaigns for topic in from_device(name, namespace, known)]
    written.append(canary("up", name, *TRY, namespace=namespace))
    return Access(tuple(written), (for_all(namespace), to_device(name, namespace)))


# --- the plan --------------------------------------------------------------------------------

PORT: Final = 8883
CLUSTER_PORT: Final = 6222
REPLICAS: Final = 3  # in a cluster: one node may be lost without losing data
RENEW_DAYS: Final = 240  # a third of the validity of our own server certificates
LARGEST_PACKET: Final = 1 << 20  # a receipt page may be this large; a report has some twenty bytes
LARGEST_QUEUE: Final = 1 << 27  # what mosquitto keeps for one session: a million larger reports
LARGEST_STORE: Final = 1 << 30  # what NATS keeps for all sessions together, headers included
SESSION_DAYS: Final = 30  # the session expiry that the collector asks for
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - TLS and users guard it
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_HASH: Final = re.compile(r"[A-Za-z0-9$./+=]{1,300}")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate from elsewhere; `authority` is what devices must trust, if not the system."""

    files: Pair
    authority: Path | None = None


@dataclass(frozen=True, slots=True)
class User:
    """A name the broker knows, with its password's hash or its certificate's serial number."""

    name: str
    role: Role
    password: str | None = None
    serial: int | None = None
    revoked: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read from a file that somebody may have changed, and written into access lists."""
        name, password = (str(text) for text in (self.name, self.password or "none"))
        sound = _NAME.fullmatch(name) and _HASH.fullmatch(password)
        if not sound or type(self.serial) not in (int, type(None)):
            raise SettingsError(f"invalid user {self.name!r}; nothing was written")
        check_labels(self.labels)


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """A broker for one namespace, reachable over TLS only, and only with a credential."""

    kind: Kind
    namespace: str
    hosts: tuple[str, ...]
    root: Path  # the directory as the broker sees it; in a container, not where we write it
    port: int = PORT
    bind: str = ""
    auth: Auth = "password"
    run_as: str | None = None
    home_assistant: str | None = None
    own_certificate: bool = True
    campaigns: tuple[str, ...] | None = None  # that devices may report to; None if not known
    stream_port: int | None = None  # NATS's own, from which workers pull reports; None if off
    nodes: tuple[str, ...] = ()  # of a cluster, one machine each
    cluster_port: int = CLUSTER_PORT

    def __post_init__(self) -> None:
        """These values go into files that control access: nothing else may be smuggled in."""
        if not self._is_sound():
            raise SettingsError("a value of the wrong kind; nothing was written")
        nodes = tuple(host_name(node, "--cluster") for node in self.nodes)
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "hosts", tuple(host_name(host) for host in self.hosts))
        for problem in self._problems():
            raise SettingsError(problem)
        if self.bind:
            object.__setattr__(self, "bind", str(ipaddress.ip_address(self.bind)))

    def _is_sound(self) -> bool:
        """Of a plan that was read from a file: options have been checked before."""
        ports = (self.port, self.cluster_port, self.stream_port or PORT)
        texts = (*self.hosts, *self.nodes, self.bind, self.run_as or "")
        return (
            all(type(port) is int and 0 < port < 1 << 16 for port in ports)
            and self.kind in KINDS
            and self.auth in AUTHS
            and all(isinstance(text, str) for text in texts)
            and bool(NAMESPACE.fullmatch(str(self.namespace)))
            and bool(DISCOVERY_PREFIX.fullmatch(str(self.home_assistant or "none")))
            and all(is_campaign(str(campaign)) for campaign in self.campaigns or ())
        )

    def _problems(self) -> Iterator[str]:
        nodes = self.nodes
        if nodes and self.kind != "nats":
            yield (
                "--cluster needs NATS; nothing was written. mosquitto is a single server: see "
                "broker-config nats --cluster"
            )
        for node in nodes:
            if nodes.count(node) > 1:
                yield f"{node} is listed twice in --cluster; nothing was written"
        if nodes and (len(nodes) < REPLICAS or len(nodes) % 2 == 0):
            yield (
                f"a cluster of {len(nodes)} is not possible; nothing was written. Name three or "
                "five machines: each message is stored on three, and a majority must be running"
            )
        if self.run_as is not None and not _USER.fullmatch(self.run_as):
            yield f"invalid user name {self.run_as!r} in --run-as; nothing was written"
        if self.stream_port is not None and self.kind != "nats":
            yield (
                "--stream-port needs NATS; nothing was written. With mosquitto, workers use shared "
                "subscriptions on the ordinary port"
            )
        if self.stream_port == self.port:
            yield "--stream-port and --port are the same; nothing was written. Choose another"
        if nodes and self.cluster_port in (self.port, self.stream_port):
            yield (
                f"the nodes of a cluster need port {self.cluster_port} among themselves, but it is "
                "given for something else; nothing was written. Choose another"
            )
        if not str(self.root).isprintable():
            yield f"invalid path {str(self.root)!r}; nothing was written"
        if self.bind and not _is_address(self.bind):
            yield f"invalid address {self.bind!r} in --bind; nothing was written"

    @property
    def url(self) -> BrokerUrl:
        """What devices connect to."""
        return BrokerUrl(True, self.hosts[0], self.port)

    @property
    def local_url(self) -> BrokerUrl:
        """What clients on the broker's own machine connect to, without a name server."""
        if self.nodes or not self.own_certificate:
            return self.url
        return BrokerUrl(True, self.reachable_at, self.port)

    @property
    def everywhere(self) -> bool:
        return self.bind in _EVERYWHERE

    @property
    def reachable_at(self) -> str:
        """The address by which the broker's own machine reaches it."""
        return "localhost" if self.everywhere else self.bind

    @property
    def certified(self) -> list[str]:
        """The names and addresses that a certificate of our own is for."""
        return list(dict.fromkeys((*self.names, *_LOOPBACK, self.reachable_at)))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name by which a client may reach it."""
        return tuple(dict.fromkeys((*self.hosts, *self.nodes)))

    @property
    def replicas(self) -> int:
        return REPLICAS if self.nodes else 1

    def streams(self, host: str) -> tuple[StreamAddress, ...] | None:
        """Where workers pull reports: at `host`, or at every node; None if they cannot."""
        port = self.stream_port
        if port is None:
            return None
        return tuple(StreamAddress(True, name, port) for name in self.nodes or (host,))

    def access(self, user: User) -> Access:
        return access(user.role, user.name, self.namespace, home_assistant=self.home_assistant)


def with_nodes(given: Mapping[str, Any], before: BrokerPlan | None) -> dict[str, Any]:
    """The options of a plan, completed for a cluster if it has nodes now or had them before."""
    known = before.nodes if before is not None else ()
    options = dict(given)
    nodes = options.get("nodes")
    if not nodes and not known:
        return options
    if options.get("bind") not in (None, "0.0.0.0"):  # noqa: S104 - only compared
        raise SettingsError(
            "--bind is for a single broker: every node of a cluster has an address of its own. "
            "Nothing was written; leave it out"
        )
    options["bind"] = ""
    if nodes and options.get("hosts") is None and (before is None or before.hosts == known):
        options["hosts"] = nodes
    if not known:  # a new cluster
        options["root"] = options.get("root") or Path()
        stream = options.get("stream_port") or (before.stream_port if before else None)
        options["stream_port"] = stream or STREAM_PORT
    return options


def this_user() -> str | None:
    """The owner of the files we write: a mosquitto started by root must switch to this user, or it
    could not read them. None if the name does not fit into the configuration."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None
    return name if _USER.fullmatch(name) else None


def host_name(text: str, option: str = "--host") -> str:
    """A host name, or an address in its canonical form."""
    if _is_address(text):
        return str(ipaddress.ip_address(text))
    if len(text) <= 253 and _HOST.fullmatch(text):
        return text
    raise SettingsError(
        f"invalid host name or address {text!r} in {option}; nothing was written. Write it like "
        "broker.example or 192.168.1.10 (an internationalised name in its xn-- form)"
    )


def address_of(hosts: Sequence[str]) -> str:
    """Where to listen for devices that use these names: at the one address given, if it is this
    machine's; on loopback, if all names are; else on every interface, because a name may resolve
    differently elsewhere."""
    if set(hosts) <= set(_LOOPBACK):
        return "127.0.0.1" if hosts[0] == "localhost" else hosts[0]
    return hosts[0] if len(hosts) == 1 and _is_ours(hosts[0]) else ""


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_ours(host: str) -> bool:
    if not _is_address(host):
        return False
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


# --- files -----------------------------------------------------------------------------------

_HEAD: Final = "# Written by allomfree-collector, again at every change: do not edit.\n"


def files(plan: BrokerPlan, users: Sequence[User]) -> dict[str, str]:
    """Every file that the broker reads, by its name in the broker's directory."""
    if plan.nodes:
        return cluster_files(plan, users)
    if plan.kind == "nats":
        return nats_files(plan, users)
    written = {"mosquitto.conf": _mosquitto_conf(plan), "acl": _access_list(plan, users)}
    if plan.auth == "password":
        rows = (f"{user.name}:{user.password}\n" for user in users if not user.revoked)
        written["passwords"] = "".join(rows)
    return written


# --- mosquitto -------------------------------------------------------------------------------


def _mosquitto_conf(plan: BrokerPlan) -> str:
    root = plan.root
    proof = f"password_file {root}/passwords"
    if plan.auth == "certificate":
        proof = f"""cafile {root}/tls/ca.crt
crlfile {root}/tls/revoked.crl
require_certificate true
use_identity_as_username true"""
    listener = f"listener {plan.port} {plan.bind}".rstrip()
    run_as = f"user {plan.run_as}\n" if plan.run_as else ""
    return f"""{_HEAD}{listener}
certfile {root}/tls/server.crt
keyfile {root}/tls/server.key
{proof}
allow_anonymous false
# A session belongs to a user: nobody can take over another's by its name.
use_username_as_clientid true
acl_file {root}/acl
# Limits are for everybody: mosquitto has none for one user or one listener.
max_packet_size {LARGEST_PACKET}
# What waits for a collector that is away: reports are small, and receipts make losses harmless,
# but after an overflow every device has to send again.
max_queued_messages 1000000
max_queued_bytes {LARGEST_QUEUE}
persistent_client_expiration {SESSION_DAYS}d
max_inflight_messages 2000
persistence true
persistence_location {root}/data/
autosave_interval 30
pid_file {root}/broker.pid
log_dest file {root}/broker.log
log_type error
log_type warning
log_type notice
connection_messages false
sys_interval 0
{run_as}"""


def _access_list(plan: BrokerPlan, users: Sequence[User]) -> str:
    """Patterns serve every device; other roles and revoked devices are named. Campaigns are named
    because mosquitto retains what any writer asks it to, on each topic it may write."""
    campaigns = EVERY_CAMPAIGN if plan.campaigns is None else plan.campaigns
    sections = []
    for user in users:
        if user.revoked:  # also for a connection that is already open
            sections.append(f"user {user.name}\ntopic deny #")
        elif user.role is not Role.DEVICE:
            granted = device_access(user.name, plan.namespace, campaigns).write  # by the patterns
            denied = [f"topic deny {name}" for name in granted]
            lines = [f"user {user.name}", *denied, *_lines("topic", plan.access(user))]
            sections.append("\n".join(lines))
    device = device_access("%u", plan.namespace, campaigns)
    patterns = "\n".join(_lines("pattern", device))
    return _HEAD + "\n\n".join([*sections, patterns]) + "\n"


def _lines(word: str, allowed: Access) -> list[str]:
    written = [f"{word} write {name}" for name in allowed.write]
    return written + [f"{word} read {name}" for name in allowed.read]


# --- NATS ------------------------------------------------------------------------------------

LIMITED: Final = ("UPDATE.$MQTT_rmsgs", "PURGE.$MQTT_rmsgs", "UPDATE.$MQTT_msgs")
"""What the auditor may do to the streams in which NATS keeps MQTT messages; see auditor.py."""

SYNC_SECONDS: Final = 1
"""How often NATS syncs. What it acknowledged survives its own end, kill -9 included, because the
kernel has it; a power cut loses the last second or two, and devices send that again, because they
have no receipt for it. Syncing every message would make each cost twenty times as much."""

GO_RUNTIME: Final = {"GOGC": "400", "GOMEMLIMIT": "256MiB"}
"""For the embedded server: it collects garbage a quarter as often while it is small. A live report
costs it 14 % less processor time, and the machine counts 11 % more of them (medians of four runs of
100,000, alternating). Variables that are already set in the environment win."""

_ANY_PORT: Final = "127.0.0.1:-1"  # any free port of this machine; the ports file names it


def nats_files(
    plan: BrokerPlan, users: Sequence[User], server: str = "allomfree", cluster: str = ""
) -> dict[str, str]:
    tls = f"""tls {{
    cert_file: {_text(plan.root / "tls/server.crt")}
    key_file: {_text(plan.root / "tls/server.key")}
    timeout: 20   # seconds: small devices on slow networks need more than NATS's two
"""
    if plan.auth == "certificate":
        tls += f"    ca_file: {_text(plan.root / 'tls/ca.crt')}\n    verify_and_map: true\n"
    tls += "  }"
    replicas = f"stream_replicas: {plan.replicas}\n  " if plan.nodes else ""
    clients, secured = _ANY_PORT, ""
    if plan.stream_port is not None:  # for workers, which pull reports
        clients, secured = _listener(plan, plan.stream_port), f"{tls}\n"
    body = _nats_conf(
        plan.root, _listener(plan, plan.port), f"  {replicas}{tls}\n", server, clients
    )
    rows = "\n".join(_nats_user(plan, user) for user in users if not user.revoked)
    return {
        "nats.conf": f'{body}{cluster}{secured}include "users.conf"\n',
        "users.conf": f"{_HEAD}authorization {{\n  timeout: 30\n  users: [\n{rows}\n  ]\n}}\n",
    }


def on_this_machine(directory: Path, host: str, port: int) -> str:
    """A configuration without users, for a listener that no other machine can reach."""
    return _nats_conf(directory, f"{host}:{port}")


def _nats_conf(
    root: Path, mqtt: str, more: str = "", server: str = "allomfree", clients: str = _ANY_PORT
) -> str:
    return f"""{_HEAD}server_name: {_text(server)}
listen: {_text(clients)}
ports_file_dir: {_text(root)}
log_file: {_text(root / "broker.log")}
logfile_size_limit: 10MB
pid_file: {_text(root / "broker.pid")}
max_payload: {LARGEST_PACKET}
max_subscriptions: 1000   # per connection
jetstream {{
  store_dir: {_text(root / "jetstream")}
  sync_interval: "{SYNC_SECONDS}s"   # what a power cut costs; devices send it again
}}
mqtt {{
  listen: {_text(mqtt)}
  max_ack_pending: 20000
  reject_qos2_publish: true   # they would be stored until they are released
  downgrade_qos2_subscribe: true
  consumer_inactive_threshold: "{SESSION_DAYS * 24}h"
{more}}}
"""


def _listener(plan: BrokerPlan, port: int) -> str:
    bind = plan.bind or "0.0.0.0"  # noqa: S104 - TLS and users guard it
    return f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"


def _nats_user(plan: BrokerPlan, user: User) -> str:
    allowed = plan.access(user)
    write = [s for name in allowed.write for s in subjects(name)]
    read = [s for name in allowed.read for s in subjects(name)]
    if user.role is Role.AUDITOR:
        write += [f"$JS.API.STREAM.{limited}" for limited in LIMITED]
    types = ["MQTT"]
    if user.role is Role.COLLECTOR and plan.stream_port is not None:
        types.append("STANDARD")
        more_write, more_read = required_subjects(plan.namespace)
        write, read = write + more_write, read + more_read
    if plan.auth == "certificate":
        proof = f"user: {_text(f'CN={user.name}')}"
    else:
        proof = f"user: {_text(user.name)}, password: {_text(user.password or '')}"
    return (
        f"    {{ {proof}, allowed_connection_types: {json.dumps(types)}, permissions: {{\n"
        f"      publish: {{ allow: {json.dumps(write)} }}\n"
        f"      subscribe: {{ allow: {json.dumps(read)} }} }} }}"
    )


def subjects(topic_filter: str) -> list[str]:
    """A topic filter as NATS subjects; `a/#` also means `a` itself."""
    subject = topic_filter.replace("/", ".").replace("+", "*")
    if subject.endswith(".#"):
        return [f"{subject[:-1]}>", subject[:-2]]
    return [subject]


def _text(value: object) -> str:
    return json.dumps(str(value))


# --- a cluster of NATS servers ---------------------------------------------------------------


def node_place(node: str) -> str:
    """The name of a node's directory."""
    return f"nodes/{node.replace(':', '-')}"


def cluster_files(plan: BrokerPlan, users: Sequence[User]) -> dict[str, str]:
    """Every file that the nodes read; they differ only in the server's name and address."""
    made: dict[str, str] = {}
    for node in plan.nodes:
        # Nodes on loopback are a cluster on one machine, for trials: each needs its own address.
        local = is_loopback(node) and node != "localhost"
        here = replace(plan, bind=node if local else "")
        texts = nats_files(here, users, f"allomfree-{node}", _cluster(here))
        made |= {f"{node_place(node)}/{name}": text for name, text in texts.items()}
    return made


def _cluster(plan: BrokerPlan) -> str:
    hosts = [f"[{node}]" if ":" in node else node for node in plan.nodes]
    routes = [f"tls://{host}:{plan.cluster_port}" for host in hosts]
    tls = plan.root / "tls"
    return f"""cluster {{
  name: allomfree
  listen: {_text(_listener(plan, plan.cluster_port))}
  routes: {json.dumps(routes)}
  no_advertise: true   # clients know all nodes already
  tls {{
    cert_file: {_text(tls / "route.crt")}
    key_file: {_text(tls / "route.key")}
    ca_file: {_text(tls / "routes.crt")}
    verify: true   # in both directions
    timeout: 10
  }}
}}
"""
