"""What is said about a cluster: which directory goes where, and how nodes take over a change."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TextIO, TypedDict

import click

from collector.brokers.config import (
    AUTHS,
    CLUSTER_PORT,
    KINDS,
    PORT,
    READER,
    Auth,
    BrokerPlan,
    Kind,
    Pair,
    ServerCertificate,
    address_of,
    this_user,
)
from collector.brokers.directory import (
    BrokerDirectory,
    announce_below,
    enrol_readers,
    node_places,
    readers,
    with_nodes,
)
from collector.commands.options import FILE, command, show
from collector.data_dir import existing_store, make_private, open_store, read_store
from collector.errors import CollectorError
from collector.health import Health, examine, fingerprint, is_outdated
from collector.settings import Settings
from protocol_spec.programs.cli import AS_JSON
from protocol_spec.programs.output import quoted
from protocol_spec.programs.settings import SettingsError
from protocol_spec.topics import DEFAULT_NAMESPACE, is_device


def start_text(nodes: Mapping[str, str]) -> str:
    """The first time, and whenever more than users has changed."""
    return "\n".join(
        [
            "Copy each directory to its machine, readable only for the user that runs NATS:",
            *_lines(nodes),
            "Start it there, in that directory:  nats-server -c nats.conf",
            "(If NATS runs there already, restart it: one machine after another.)",
        ]
    )


def reload_text(nodes: Mapping[str, str]) -> str:
    """After a change of users."""
    return "\n".join(
        [
            "The nodes do not know it yet. Copy users.conf from each directory to its machine:",
            *_lines(nodes),
            "Then, in that directory:  nats-server --signal reload=broker.pid",
        ]
    )


def _lines(nodes: Mapping[str, str]) -> list[str]:
    return [f"    {node}: {directory}" for node, directory in nodes.items()]


# --- What the commands about the broker print: typed facts, and their text.


_RELOAD: Final = "send mosquitto a SIGHUP, as in: systemctl reload mosquitto"
_NEXT_START: Final = (
    "The broker uses it from its next start: allomfree-collector run\n(If the collector runs "
    "already, restart it.)"
)
_RESTART: Final = (
    "mosquitto must be RESTARTED to use it, as in: systemctl restart mosquitto. Until then it "
    "listens as before.\n"
)
_AS_ROOT: Final = (
    "\nThese files are root's, so mosquitto runs as root, too. Better: give the collector a user "
    "of its own, and run this as that user."
)
_EVERYWHERE: Final = (
    "ATTENTION: it listens on EVERY interface of this machine, whatever networks it is in. For one "
    "network only, run this again with --bind ADDRESS.\n"
)
_STREAM: Final = "Workers pull reports with --stream {}, once the broker was started anew.\n"
_ALONE: Final[Mapping[str, str]] = {}
_ONE_ADDRESS: Final = "It listens on {} only.\n"


class ConfiguredFacts(TypedDict):
    """What `broker-config --json` prints."""

    kind: Kind
    directory: str
    broker: str
    auth: Auth
    namespace: str
    stream: str | None
    listens_on: str
    enrolled: int
    authority_changed: bool
    reloaded: bool
    restart: bool
    run_as: str | None
    nodes: dict[str, str]


class EnrolledDevice(TypedDict):
    """A device, and the directory to carry to it."""

    device: str
    credentials: str


class EnrolledReader(TypedDict):
    """A reader, and the directory with its credential."""

    reader: str
    credentials: str


class EnrolledFacts(TypedDict):
    """What `enrol --json` prints; `nodes` are the directories of a cluster's."""

    broker: str
    namespace: str
    enrolled: list[EnrolledDevice]
    readers: list[EnrolledReader]
    home_assistant: str | None
    reloaded: bool
    kind: Kind
    nodes: dict[str, str]


class RevokedFacts(TypedDict):
    """What `revoke --json` prints; `kind` is None where no broker is configured here."""

    device: str
    revoked: bool
    changed: bool
    enrolled: bool
    similar: list[str]
    kind: Kind | None
    reloaded: bool
    nodes: dict[str, str]


def configured_text(facts: ConfiguredFacts) -> str:
    """What was written, and what to do next."""
    changed = (
        "Devices enrolled before must trust another authority now: give each the new "
        f"{facts['directory']}/tls/trusted.crt as its ca.crt.\n"
    )
    return (
        f"Wrote {facts['kind']}'s configuration, access list and credentials (by "
        f"{facts['auth']}) into {facts['directory']}.\n"
        f"Devices connect to {facts['broker']}; {facts['enrolled']} are enrolled.\n"
        f"{_STREAM.format(facts['stream']) if facts['stream'] else ''}"
        f"{_where(facts)}"
        f"{changed if facts['authority_changed'] else ''}"
        f"{_start_text(facts)}"
        f"Enrol:     allomfree-collector enrol --count 1\n"
        f"Check it:  allomfree-collector doctor"
    )


def _where(facts: ConfiguredFacts) -> str:
    if facts["nodes"]:
        return ""
    everywhere = facts["listens_on"] == "every interface"
    return _EVERYWHERE if everywhere else _ONE_ADDRESS.format(facts["listens_on"])


def _start_text(facts: ConfiguredFacts) -> str:
    """How it comes into use, if it is not already."""
    if facts["reloaded"]:
        return "The running broker uses it now.\n"
    if facts["nodes"]:
        return f"{start_text(facts['nodes'])}\n"
    if facts["restart"]:
        return _RESTART
    if facts["kind"] == "mosquitto":
        who = _AS_ROOT if facts["run_as"] == "root" else ""
        return f"Start it:  mosquitto -c {shlex.quote(facts['directory'])}/mosquitto.conf{who}\n"
    return "Start it:  allomfree-collector run        (it starts the broker itself)\n"


def enrolled_text(facts: EnrolledFacts) -> str:
    """Where the credentials are, and what to do with them."""
    address = f"{facts['broker']}/{facts['namespace']}/CAMPAIGN"
    devices = [
        *(f"{row['device']}: {row['credentials']}" for row in facts["enrolled"]),
        "Copy each directory to its device as /etc/allomfree, then delete it here.",
        f"Then, on the device:  allomfree-edge join {address}",
    ]
    return "\n".join(
        [
            *(devices if facts["enrolled"] else []),
            *(line for row in facts["readers"] for line in _reader_lines(facts, row)),
            _reloaded(facts["reloaded"], facts["kind"], facts["nodes"]),
        ]
    )


def _reader_lines(facts: EnrolledFacts, row: EnrolledReader) -> list[str]:
    """What somebody types into a dashboard."""
    host, _, port = facts["broker"].removeprefix("mqtts://").rpartition(":")
    place, prefix = row["credentials"], facts["home_assistant"]
    lines = [
        f"{row['reader']}: {place}",
        f"It may read {facts['namespace']}/v1/+/pub/# and can never report.",
        f"Connect it to host {host}, port {port}, with TLS, as user {row['reader']};",
        f"its password or certificate, and the authority to trust, are in {place}.",
    ]
    if prefix:
        lines.append(
            "In Home Assistant: Settings, Devices & services, Add integration, MQTT. Campaigns "
            f"appear as devices, announced below {prefix}/."
        )
    return lines


def revoked_text(facts: RevokedFacts) -> str:
    """What the device can no longer do, or can do again."""
    device, reader = facts["device"], facts["device"].startswith(READER)
    if not facts["changed"]:
        return (
            f"{device} was not revoked; nothing was changed."
            if not facts["revoked"]
            else (f"{device} was revoked already.")
        )
    if facts["revoked"]:
        lines = [] if reader else [f"{device} is revoked: its reports are refused."]
        credential = "Its credential for the broker is no longer valid."
    else:
        lines = [] if reader else [f"{device} is no longer revoked: its reports are counted again."]
        credential = "Its credential for the broker is valid again."
    if facts["enrolled"] and facts["kind"] is not None:
        return "\n".join(
            [*lines, credential, _reloaded(facts["reloaded"], facts["kind"], facts["nodes"])]
        )
    return "\n".join([*lines, *_unknown_lines(facts)])


def _unknown_lines(facts: RevokedFacts) -> list[str]:
    """Nobody of that name was enrolled here: it may be a typing error."""
    device = facts["device"]
    elsewhere = "whoever runs the broker manages its credential."
    if not facts["revoked"]:
        return [f"It was not enrolled here: {elsewhere}"]
    near = f" Did you mean {' or '.join(facts['similar'])}?" if facts["similar"] else ""
    nobody = f"But NO DEVICE {device} was enrolled here.{near}"
    if facts["kind"] is None:
        nobody = f"No device {device} was enrolled here: {elsewhere}"
    return [
        f"{nobody} If the name is wrong, take it back:",
        f"    allomfree-collector revoke {device} --undo",
    ]


def must_reload_text(kind: Kind) -> str:
    """For a change that the broker cannot be told of from here."""
    return _reloaded(False, kind)


def _reloaded(done: bool, kind: Kind, nodes: Mapping[str, str] = _ALONE) -> str:
    if done:
        return "The running broker uses it now."
    if nodes:
        return reload_text(nodes)
    if kind == "nats":
        return _NEXT_START
    return f"The broker must reload its configuration: {_RELOAD}"


# --- Have what runs use a broker's new configuration, and see that it does.


PATIENCE_SECONDS: Final = 30.0


def hand_over(
    settings: Settings, configured: BrokerDirectory, seconds: float = PATIENCE_SECONDS
) -> bool:
    """Whether the running broker uses the configuration now.

    Mostly it reads its files again. Where it cannot, the running collector starts its broker or
    its connection anew, by itself; we wait until it has.
    """
    limit = time.monotonic() + seconds
    health = examine(settings.data_dir)
    if configured.plan.kind == "mosquitto" or not _is_outdated(health):
        reloaded = configured.reload()
        if not reloaded or not _is_outdated(health):
            return reloaded
    while time.monotonic() < limit and health.running:
        if health.well and not _is_outdated(health):
            return True
        time.sleep(0.2)
        health = examine(settings.data_dir)
    return False


def needs_restart(configured: BrokerDirectory, before: str) -> bool:
    """Whether a broker that is not ours to restart has to be: mosquitto reads again who may do
    what and its certificates, but not where it listens. `before` is what was configured."""
    return configured.plan.kind == "mosquitto" and fingerprint(configured.path) != before


def _is_outdated(health: Health) -> bool:
    return health.beat is not None and is_outdated(health.beat.status)


# --- The broker's configuration.


@command
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("node", nargs=-1, metavar="")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name or address by which devices reach the broker; may be repeated.",
)
@click.option(
    "--port", type=click.IntRange(1, 65_535), help=f"Port of the TLS listener.  [default: {PORT}]"
)
@click.option(
    "--bind",
    metavar="ADDRESS",
    help="Address to listen on, or all.  [default: that of --host, or all if it is a name]",
)
@click.option(
    "--auth", type=click.Choice(AUTHS), help="How devices authenticate.  [default: password]"
)
@click.option(
    "--stream-port",
    type=click.IntRange(1, 65_535),
    help="NATS: also let workers pull reports, at this port (usually 4222).",
)
@click.option(
    "--cluster",
    "nodes",
    multiple=True,
    metavar="HOST HOST HOST",
    help="NATS: the machines of a cluster, three or five.",
)
@click.option(
    "--cluster-port",
    type=click.IntRange(1, 65_535),
    help=f"Port that nodes use among themselves.  [default: {CLUSTER_PORT}]",
)
@click.option("--server-cert", type=FILE, help="Server certificate made elsewhere, with its chain.")
@click.option("--server-key", type=FILE, help="Key of the server certificate.")
@click.option("--server-ca", type=FILE, help="Authority devices must trust, if not the system's.")
@click.option("--own-cert", is_flag=True, help="Go back to a certificate made here.")
@click.option("--root", type=FILE, help="The directory as a broker in a container sees it.")
@click.option("--run-as", metavar="USER", help="User that a broker started by root becomes.")
@AS_JSON
def broker_config(
    settings: Settings,
    kind: Kind,
    node: tuple[str, ...],
    hosts: tuple[str, ...],
    port: int | None,
    bind: str | None,
    auth: Auth | None,
    stream_port: int | None,
    nodes: tuple[str, ...],
    cluster_port: int | None,
    server_cert: Path | None,
    server_key: Path | None,
    server_ca: Path | None,
    own_cert: bool,
    root: Path | None,
    run_as: str | None,
    as_json: bool,
) -> None:
    """Write a broker's configuration, with access control.

    That is its access list, its passwords or client certificates, and its own certificate.
    Run again, it writes them again and renews certificates that need it. Options that are not
    given keep their values, and enrolled devices stay enrolled.

    \b
    allomfree-collector broker-config mosquitto --host broker.example
    allomfree-collector broker-config nats --host pi.local --host 192.168.1.10
    allomfree-collector broker-config nats --cluster a.example b.example c.example
    """
    _check_further(node, nodes)
    directory = settings.broker_dir.absolute()
    server = _server(server_cert, server_key, server_ca)
    given = {
        "hosts": hosts or None,
        "root": root,
        "port": port,
        "bind": "0.0.0.0" if bind == "all" else bind,  # noqa: S104 - asked for by name
        "auth": auth,
        "stream_port": stream_port,
        "nodes": (*nodes, *node) or None,
        "cluster_port": cluster_port,
        "run_as": run_as,
        "own_certificate": False if server else own_cert or None,
    }
    if not BrokerDirectory.exists(directory):
        _plan(kind, settings, directory, None, given)  # refused before anything is written
    make_private(settings.data_dir)
    known = _known_campaigns(settings)
    with BrokerDirectory.changing(directory):
        before = BrokerDirectory.load(directory) if BrokerDirectory.exists(directory) else None
        plan = _plan(kind, settings, directory, before, given)
        plan = replace(plan, campaigns=known) if known is not None else plan
        trusted, last = before.authority_digest if before else "", fingerprint(directory)
        configured = BrokerDirectory.configure(directory, plan, server)
    restart = before is not None and needs_restart(configured, last)
    facts: ConfiguredFacts = {
        "kind": kind,
        "directory": str(directory),
        "broker": str(plan.url),
        "auth": plan.auth,
        "namespace": plan.namespace,
        "stream": ",".join(map(str, plan.streams(plan.url.host) or ())) or None,
        "listens_on": "every interface" if plan.everywhere else plan.bind,
        "enrolled": len(configured.enrolled),
        "authority_changed": before is not None and trusted != configured.authority_digest,
        "reloaded": not restart and hand_over(settings, configured),
        "restart": restart,
        "run_as": plan.run_as,
        "nodes": node_places(configured.path, plan),
    }
    show(facts, as_json, configured_text)


def _check_further(further: Sequence[str], nodes: Sequence[str]) -> None:
    """`--cluster A B C` is one option and two more words."""
    if further and not nodes:
        raise click.UsageError(f"Got unexpected extra argument ({' '.join(further)})")


def _plan(
    kind: Kind,
    settings: Settings,
    directory: Path,
    before: BrokerDirectory | None,
    given: Mapping[str, Any],
) -> BrokerPlan:
    """The plan made before, or a new one, with the options given now."""
    known = None if before is None else before.plan
    chosen = {k: v for k, v in with_nodes(given, known).items() if v is not None}
    if settings.home_assistant is not None:
        chosen["home_assistant"] = settings.home_assistant or None
    if before is not None:
        named = settings.namespace != DEFAULT_NAMESPACE
        namespace = settings.namespace if named else before.plan.namespace
        return replace(before.plan, kind=kind, namespace=namespace, **chosen)
    if "hosts" not in chosen:
        raise SettingsError(
            "--host is not given; nothing was written. It is the name or address by which devices "
            "reach the broker, and its certificate will be for it"
        )
    chosen.setdefault("bind", address_of(chosen["hosts"]))
    if kind == "mosquitto" and "root" not in chosen:
        chosen.setdefault("run_as", this_user())
    return BrokerPlan(kind, settings.namespace, **{"root": directory, **chosen})


def _known_campaigns(settings: Settings) -> tuple[str, ...] | None:
    """The campaigns of this collector; None where it has no data, as on a broker's own machine."""
    if not settings.data_dir.exists():
        return None
    try:
        with closing(read_store(settings.data_dir, settings.store)) as store:
            return tuple(sorted(campaign.name for campaign in store.campaigns())) or None
    except CollectorError:
        return None


def _server(
    certificate: Path | None, key: Path | None, authority: Path | None
) -> ServerCertificate | None:
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None:
        raise SettingsError("--server-cert and --server-key belong together; nothing was written")
    return ServerCertificate(Pair(certificate, key), authority)


# --- Who may connect to the broker: devices that report, and readers that never do.


@command
@click.argument("names", nargs=-1)
@click.option("--count", type=int, default=0, help="Also enrol this many under random names.")
@click.option("--from", "file", type=click.File(), help="File of names, one a line; - is stdin.")
@click.option(
    "--reader",
    "wanted_readers",
    multiple=True,
    metavar="NAME",
    help="Enrol a dashboard: it reads results and can never report; may be repeated.",
)
@AS_JSON
def enrol(
    settings: Settings,
    names: tuple[str, ...],
    count: int,
    file: TextIO | None,
    wanted_readers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create credentials for devices, or for readers, at the configured broker.

    Broker and collector see a device's name: a random one says nothing about its owner. With
    --home-assistant, campaigns are announced to Home Assistant, and readers can read that.

    \b
    allomfree-collector enrol --count 3
    allomfree-collector enrol kitchen garden
    allomfree-collector enrol --reader home --home-assistant homeassistant
    """
    path = settings.broker_dir.absolute()
    BrokerDirectory.load(path)  # an error where there is none
    wanted = [*names, *_names_in(file), *(secrets.token_hex(8) for _ in range(count))]
    _check_names([*wanted, *(f"{READER}{name}" for name in wanted_readers)])
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        if settings.home_assistant is not None:
            announce_below(configured, settings.home_assistant or None)
        directories = configured.enrol(wanted) if wanted else []
        reading = enrol_readers(configured, wanted_readers) if wanted_readers else {}
    facts: EnrolledFacts = {
        "broker": str(configured.plan.url),
        "namespace": configured.plan.namespace,
        "enrolled": [
            {"device": name, "credentials": str(place)} for name, place in zip(wanted, directories)
        ],
        "readers": [{"reader": name, "credentials": str(reading[name])} for name in reading],
        "home_assistant": configured.plan.home_assistant,
        "reloaded": hand_over(settings, configured),
        "kind": configured.plan.kind,
        "nodes": node_places(configured.path, configured.plan),
    }
    show(facts, as_json, enrolled_text)


def _names_in(file: Iterable[str] | None) -> list[str]:
    return [line.strip() for line in file or () if line.strip()]


def _check_names(names: list[str]) -> None:
    if not names:
        raise SettingsError("no device is named; nothing was enrolled. Give names, or --count 1")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SettingsError(f"{name} is named twice; nothing was enrolled")
        seen.add(name)


@command
@click.argument("device")
@click.option("--undo", is_flag=True, help="Let the device connect and report again.")
@AS_JSON
def revoke(settings: Settings, device: str, undo: bool, as_json: bool) -> None:
    """Refuse a device's reports and revoke its credential; or a reader's.

    The credential is the broker's, so only one that was enrolled here can be revoked.

    \b
    allomfree-collector revoke kitchen-7
    allomfree-collector revoke Reader-home
    """
    reader = device.startswith(READER)
    if not is_device(device.removeprefix(READER)):
        raise SettingsError(
            f"invalid device name {quoted(device)}: use 1 to 32 of a-z, 0-9 and -. Nothing was "
            "changed"
        )
    changed = not reader and _refuse_reports(settings, device, undo=undo)
    configured, enrolled = _take_credential(settings, device, undo=undo)
    if reader and not enrolled:
        raise SettingsError(_unknown_reader(device, configured))
    facts: RevokedFacts = {
        "device": device,
        "revoked": not undo,
        "changed": changed or enrolled,
        "enrolled": enrolled,
        "similar": [] if enrolled or configured is None else _similar(device, configured),
        "kind": configured.plan.kind if configured else None,
        "reloaded": bool(configured and enrolled and hand_over(settings, configured)),
        "nodes": node_places(configured.path, configured.plan) if configured else {},
    }
    show(facts, as_json, revoked_text)


def _refuse_reports(settings: Settings, device: str, *, undo: bool) -> bool:
    """Whether that was not so before.

    Where a broker was configured, the directory is a collector's, though it may not have run yet.
    """
    ours = settings.store is None and BrokerDirectory.exists(settings.data_dir / "broker")
    opened = (open_store if ours else existing_store)(settings.data_dir, settings.store)
    with closing(opened) as store:
        before = device in store.revoked()
        if undo:
            store.reinstate(device)
        else:
            store.revoke(device, int(time.time()))
    return before == undo


def _take_credential(
    settings: Settings, name: str, *, undo: bool
) -> tuple[BrokerDirectory | None, bool]:
    """The broker configured here, if there is one, and whether the name is enrolled there."""
    path = settings.broker_dir.absolute()
    if not BrokerDirectory.exists(path):
        return None, False
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        return configured, configured.revoke(name, undo=undo)


def _similar(device: str, configured: BrokerDirectory) -> list[str]:
    """Whom somebody may have meant: a reader, named as `enrol` was told, or a device."""
    reader = [name for name in readers(configured) if name == f"{READER}{device}"]
    return [*reader, *get_close_matches(device, configured.enrolled, 3)]


def _unknown_reader(name: str, configured: BrokerDirectory | None) -> str:
    known: Sequence[str] = [] if configured is None else readers(configured)
    there_are = f"there are {', '.join(known)}" if known else "there is none"
    return f"no reader {name} is enrolled here: {there_are}. Nothing was changed"
