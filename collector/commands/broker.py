"""The broker and who may connect to it: `broker-config`, `enrol` and `revoke`."""

from __future__ import annotations

import secrets
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TextIO

import click

from collector.brokers.config import (
    AUTHS,
    CLUSTER_PORT,
    KINDS,
    PORT,
    READER,
    BrokerPlan,
    Kind,
    Pair,
    Role,
    ServerCertificate,
    address_of,
    this_user,
    with_nodes,
)
from collector.brokers.directory import BrokerDirectory
from collector.commands.options import FILE, Facts, command, show
from collector.data_dir import existing_store, make_private, open_store, read_store
from collector.errors import CollectorError
from collector.health import examine, fingerprint
from collector.settings import Settings
from collector.store import Store
from protocol_spec import is_trial
from protocol_spec.programs.cli import AS_JSON
from protocol_spec.programs.invitation import check_labels, read_invitation
from protocol_spec.programs.output import quoted
from protocol_spec.programs.settings import SettingsError
from protocol_spec.programs.system import write_durably
from protocol_spec.topics import DEFAULT_NAMESPACE, is_device

PATIENCE_SECONDS: Final = 30.0
_PORT: Final = click.IntRange(1, 65_535)

# --- broker-config ---------------------------------------------------------------------------


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
@click.option("--port", type=_PORT, help=f"Port of the TLS listener.  [default: {PORT}]")
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
    type=_PORT,
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
    type=_PORT,
    help=f"Port that nodes use among themselves.  [default: {CLUSTER_PORT}]",
)
@click.option("--server-cert", type=FILE, help="Server certificate made elsewhere, with its chain.")
@click.option("--server-key", type=FILE, help="Key of the server certificate.")
@click.option("--server-ca", type=FILE, help="Authority devices must trust, if not the system's.")
@click.option("--own-cert", is_flag=True, help="Go back to a certificate made here.")
@click.option("--root", type=FILE, help="The directory as a broker in a container sees it.")
@click.option("--run-as", metavar="USER", help="User that a broker started by root switches to.")
@AS_JSON
def broker_config(
    settings: Settings,
    kind: Kind,
    node: tuple[str, ...],
    hosts: tuple[str, ...],
    bind: str | None,
    nodes: tuple[str, ...],
    server_cert: Path | None,
    server_key: Path | None,
    server_ca: Path | None,
    own_cert: bool,
    as_json: bool,
    **options: Any,  # port, auth, stream_port, cluster_port, root, run_as
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
    if node and not nodes:  # `--cluster A B C` is one option and two more words
        raise click.UsageError(f"Got unexpected extra argument ({' '.join(node)})")
    directory = settings.broker_dir.absolute()
    server = None
    if server_cert or server_key or server_ca:
        if server_cert is None or server_key is None:
            raise SettingsError(
                "--server-cert and --server-key belong together; nothing was written"
            )
        server = ServerCertificate(Pair(server_cert, server_key), server_ca)
    given = options | {
        "hosts": hosts or None,
        "bind": "0.0.0.0" if bind == "all" else bind,  # noqa: S104 - asked for by name
        "nodes": (*nodes, *node) or None,
        "own_certificate": False if server else own_cert or None,
    }
    if not BrokerDirectory.exists(directory):
        _plan(kind, settings, directory, None, given)  # refused before anything is written
    make_private(settings.data_dir)
    known = _known_campaigns(settings)
    with BrokerDirectory.changing(directory):
        before = BrokerDirectory.load(directory) if BrokerDirectory.exists(directory) else None
        plan = _plan(kind, settings, directory, before.plan if before else None, given)
        plan = replace(plan, campaigns=known) if known is not None else plan
        trusted, last = before.authority_digest if before else "", fingerprint(directory)
        configured = BrokerDirectory.configure(directory, plan, server)
    # mosquitto reloads access and certificates, but not where it listens; it is not ours to restart
    restart = bool(before) and kind == "mosquitto" and fingerprint(directory) != last
    facts = {
        "kind": kind,
        "directory": str(directory),
        "broker": str(plan.url),
        "auth": plan.auth,
        "namespace": plan.namespace,
        "stream": ",".join(map(str, plan.streams(plan.url.host) or ())) or None,
        "listens_on": "every interface" if plan.everywhere else plan.bind,
        "enrolled": len(configured.enrolled),
        "authority_changed": before is not None and trusted != configured.authority_digest,
        "reloaded": not restart and _hand_over(settings, configured),
        "restart": restart,
        "run_as": plan.run_as,
        "nodes": _nodes(configured),
    }
    show(facts, as_json, _configured_text)


def _plan(
    kind: Kind,
    settings: Settings,
    directory: Path,
    before: BrokerPlan | None,
    given: Mapping[str, Any],
) -> BrokerPlan:
    """The plan made before, or a new one, with the options given now."""
    chosen = {k: v for k, v in with_nodes(given, before).items() if v is not None}
    if settings.home_assistant is not None:
        chosen["home_assistant"] = settings.home_assistant or None
    if before is not None:
        named = settings.namespace != DEFAULT_NAMESPACE
        namespace = settings.namespace if named else before.namespace
        return replace(before, kind=kind, namespace=namespace, **chosen)
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
    """The campaigns of this collector; None if it has no data, as on a broker's own machine."""
    try:
        with closing(read_store(settings.data_dir, settings.store)) as store:
            return tuple(sorted(campaign.name for campaign in store.campaigns())) or None
    except CollectorError:
        return None


def _configured_text(facts: Facts) -> str:
    directory, kind, nodes = facts["directory"], facts["kind"], facts["nodes"]
    lines = [
        f"Wrote {kind}'s configuration, access list and credentials into {directory}.",
        f"Clients authenticate by {facts['auth']}.",
        f"Devices connect to {facts['broker']}; {facts['enrolled']} are enrolled.",
    ]
    if facts["stream"]:
        lines.append(
            f"Workers pull reports with --stream {facts['stream']}, once the broker was restarted."
        )
    if facts["listens_on"] == "every interface" and not nodes:
        lines.append(
            "ATTENTION: it listens on EVERY interface of this machine, whatever networks it is in. "
            "For one network only, run this again with --bind ADDRESS."
        )
    elif not nodes:
        lines.append(f"It listens on {facts['listens_on']} only.")
    if facts["authority_changed"]:
        lines.append(
            "Devices enrolled before must trust another authority now: give each the new "
            f"{directory}/tls/trusted.crt as its ca.crt."
        )
    if facts["reloaded"]:
        lines.append(_IN_USE)
    elif nodes:
        lines += [
            "Copy each directory to its machine, readable only for the user that runs NATS:",
            *_node_lines(nodes),
            "Start it there, in that directory:  nats-server -c nats.conf",
            "(If NATS is already running there, restart it: one machine after another.)",
        ]
    elif facts["restart"]:
        lines.append("mosquitto must be RESTARTED to use it, as in: systemctl restart mosquitto.")
        lines.append("Until then it listens as before.")
    elif kind == "nats":
        lines.append("Start it:  allomfree-collector run        (it starts the broker itself)")
    else:
        lines.append(f"Start it:  mosquitto -c {shlex.quote(directory)}/mosquitto.conf")
        if facts["run_as"] == "root":
            lines.append("These files are root's, so mosquitto runs as root, too.")
            lines.append("Better: give the collector a user of its own, and run this as that user.")
    lines.append("Enrol:     allomfree-collector enrol --count 1")
    return "\n".join([*lines, "Check it:  allomfree-collector doctor"])


# --- enrol -----------------------------------------------------------------------------------


@command
@click.argument("names", nargs=-1)
@click.option("--count", type=int, default=0, help="Also enrol this many under random names.")
@click.option("--from", "file", type=click.File(), help="File of names, one a line; - is stdin.")
@click.option("--campaign", help="Campaign to invite to.  [default: the one that is open]")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Public fact about these devices, to group results by, as region=north; may be repeated.",
)
@click.option("--link", is_flag=True, help="Also print each invitation as a link, to paste.")
@click.option("--qr", is_flag=True, help="Also write each invitation as a QR code, in an SVG file.")
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
    campaign: str | None,
    labels: tuple[str, ...],
    link: bool,
    qr: bool,
    wanted_readers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create an invitation file for each device, or credentials for readers.

    Broker and collector see a device's name: a random one says nothing about its owner. With
    --home-assistant, campaigns are announced to Home Assistant, and readers can read that.

    \b
    allomfree-collector enrol --count 3
    allomfree-collector enrol kitchen garden --label region=north
    allomfree-collector enrol --reader home --home-assistant homeassistant
    """
    path = settings.broker_dir.absolute()
    before = BrokerDirectory.load(path)
    wanted = [*names, *filter(None, map(str.strip, file or ()))]
    wanted += [secrets.token_hex(8) for _ in range(count)]
    every = Counter([*wanted, *(f"{READER}{name}" for name in wanted_readers)])
    if not every:
        raise SettingsError("no device is named; nothing was enrolled. Give names, or --count 1")
    for name, times in every.items():
        if times > 1:
            raise SettingsError(f"{name} is named twice; nothing was enrolled")
        before.check_new(name, Role.READER if name.startswith(READER) else Role.DEVICE)
    given = _labels(labels)
    invited = _invited_to(settings, campaign)
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        if settings.home_assistant is not None:
            configured.change_plan(home_assistant=settings.home_assistant or None)
        if given:  # before the device can report: its group in a campaign never changes
            _keep_labels(settings, wanted, given)
        files = configured.enrol(wanted, campaign=invited, labels=given)
        readers = configured.enrol_readers(wanted_readers) if wanted_readers else {}
    facts = {
        "broker": str(configured.plan.url),
        "namespace": configured.plan.namespace,
        "campaign": invited or None,
        "labels": given,
        "in_others": _in_others(settings, given) if given else {},
        "enrolled": [_enrolled(name, each, link, qr) for name, each in files.items()],
        "readers": [{"reader": n, "credentials": str(place)} for n, place in readers.items()],
        "home_assistant": configured.plan.home_assistant,
        "reloaded": _hand_over(settings, configured),
        "kind": configured.plan.kind,
        "nodes": _nodes(configured),
    }
    show(facts, as_json, _enrolled_text)


def _labels(given: Iterable[str]) -> dict[str, str]:
    pairs = [text.partition("=")[::2] for text in given]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"--label {name} is given twice; nothing was enrolled")
    try:
        return check_labels(dict(pairs))
    except SettingsError as error:
        raise SettingsError(f"--label: {error}. Nothing was enrolled") from None


def _keep_labels(settings: Settings, names: Iterable[str], labels: Mapping[str, str]) -> None:
    """For the collector, which groups results by them. A name keeps the labels it first got."""
    with closing(_own_store(settings)) as store:
        known = {label: store.labelled(label) for label in labels}
        for name in names:
            for label, value in labels.items():
                if known[label].get(name, value) != value:
                    raise SettingsError(
                        f"{name} was enrolled before with {label}={known[label][name]}, which "
                        "stays so; nothing was enrolled. Choose another name"
                    )
        store.label(names, labels)


def _in_others(settings: Settings, labels: Mapping[str, str]) -> dict[str, str]:
    """The open campaigns that have groups, but none for these labels: perhaps a wrong spelling."""
    with closing(_own_store(settings)) as store:
        opened = [each.manifest for each in store.campaigns() if each.closed is None]
    return {
        each.campaign: f"{each.groups.label} = {' or '.join(each.groups.values)}"
        for each in opened
        if each.groups and labels.get(each.groups.label) not in each.groups.values
    }


def _invited_to(settings: Settings, campaign: str | None) -> str:
    """The full name of the campaign; empty if none is named, and not exactly one is open apart from
    trials."""
    try:
        with closing(read_store(settings.data_dir, settings.store)) as store:
            found = [store.campaign(campaign)] if campaign else store.campaigns()
    except CollectorError:
        if campaign:
            raise
        found = []
    known = [
        each.manifest.full_name
        for each in found
        if each.closed is None and (campaign or not is_trial(each.manifest))
    ]
    if campaign and not known:
        raise CollectorError(f"{found[0].name} is closed; nothing was enrolled")
    return known[0] if len(known) == 1 else ""


def _enrolled(name: str, file: Path, link: bool, qr: bool) -> Facts:
    facts = {"device": name, "invitation": str(file)}
    if link or qr:
        text = read_invitation(file).as_link()
        facts |= {"link": text} if link else {}
        if qr:
            facts["qr"] = str(file.with_suffix(".svg"))
            import segno  # noqa: PLC0415 - only when a code is drawn

            drawn = BytesIO()
            segno.make_qr(text, error="l").save(drawn, kind="svg", scale=4, border=4, light="#fff")
            write_durably(file.with_suffix(".svg"), drawn.getvalue())
    return facts


def _enrolled_text(facts: Facts) -> str:
    lines = []
    for row in facts["enrolled"]:
        lines.append(f"{row['device']}: {row['invitation']}")
        lines += [row[name] for name in ("qr", "link") if name in row]
    if facts["enrolled"]:
        lines += [
            "Each is as secret as a password. Copy it to its device, delete it here; then, there:",
            f"    allomfree-edge join {Path(facts['enrolled'][0]['invitation']).name}",
        ]
        if facts["campaign"] is None:
            lines.append(
                "They name no campaign: the owner also needs its link, from: "
                "allomfree-collector invite"
            )
        lines += [
            f"ATTENTION: {name} counts them as others, because its groups are {groups}. Labels "
            "stay; if these are wrong, revoke the devices and enrol under new names."
            for name, groups in facts["in_others"].items()
        ]
    host, _, port = facts["broker"].removeprefix("mqtts://").rpartition(":")
    for row in facts["readers"]:  # what somebody types into a dashboard
        place = row["credentials"]
        lines += [
            f"{row['reader']}: {place}",
            f"It may read {facts['namespace']}/v1/+/pub/# and can never report.",
            f"Connect it to host {host}, port {port}, with TLS, as user {row['reader']};",
            f"its password or certificate, and the authority to trust, are in {place}.",
        ]
        if facts["home_assistant"]:
            lines.append(
                "In Home Assistant: Settings, Devices & services, Add integration, MQTT. Campaigns "
                f"appear as devices, announced below {facts['home_assistant']}/."
            )
    return "\n".join([*lines, reloaded_text(facts["reloaded"], facts["kind"], facts["nodes"])])


# --- revoke ----------------------------------------------------------------------------------


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
    path = settings.broker_dir.absolute()
    configured, enrolled = None, False
    if BrokerDirectory.exists(path):
        with BrokerDirectory.changing(path):
            configured = BrokerDirectory.load(path)
            enrolled = configured.revoke(device, undo=undo)
    if reader and not enrolled:
        known = configured.readers if configured else []
        there_are = f"there are {', '.join(known)}" if known else "there is none"
        raise SettingsError(
            f"no reader {device} is enrolled here: {there_are}. Nothing was changed"
        )
    facts = {
        "device": device,
        "revoked": not undo,
        "changed": changed or enrolled,
        "enrolled": enrolled,
        "kind": configured.plan.kind if configured else None,
        "reloaded": bool(configured and enrolled and _hand_over(settings, configured)),
        "nodes": _nodes(configured) if configured else {},
    }
    show(facts, as_json, _revoked_text)


def _refuse_reports(settings: Settings, device: str, *, undo: bool) -> bool:
    """Whether that is a change."""
    with closing(_own_store(settings)) as store:
        before = device in store.revoked()
        if undo:
            store.reinstate(device)
        else:
            store.revoke(device, int(time.time()))
    return before == undo


def _own_store(settings: Settings) -> Store:
    """Where a broker was configured, the directory is a collector's, though it may not have run
    yet."""
    ours = settings.store is None and BrokerDirectory.exists(settings.data_dir / "broker")
    return (open_store if ours else existing_store)(settings.data_dir, settings.store)


def _revoked_text(facts: Facts) -> str:
    device, revoked = facts["device"], facts["revoked"]
    if not facts["changed"]:
        unchanged = "is already revoked" if revoked else "was not revoked; nothing was changed"
        return f"{device} {unchanged}."
    lines = []
    if not device.startswith(READER):
        what = "is revoked: its reports are refused"
        again = "is no longer revoked: its reports are counted again"
        lines.append(f"{device} {what if revoked else again}.")
    elsewhere = "whoever runs the broker manages its credential."
    if facts["enrolled"]:
        valid = "no longer valid" if revoked else "valid again"
        lines.append(f"Its credential for the broker is {valid}.")
        lines.append(reloaded_text(facts["reloaded"], facts["kind"], facts["nodes"]))
    elif not revoked:
        lines.append(f"It was not enrolled here: {elsewhere}")
    else:
        unknown = f"But NO DEVICE {device} was enrolled here."
        if facts["kind"] is None:
            unknown = f"No device {device} was enrolled here: {elsewhere}"
        lines.append(f"{unknown} If the name is wrong, undo it:")
        lines.append(f"    allomfree-collector revoke {device} --undo")
    return "\n".join(lines)


# --- taking a new configuration into use -----------------------------------------------------


def _hand_over(settings: Settings, configured: BrokerDirectory) -> bool:
    """Whether the running broker uses the configuration now.

    Usually it reloads its files. Where it cannot, the running collector restarts its broker or its
    connection by itself; we wait until it has.
    """
    limit = time.monotonic() + PATIENCE_SECONDS
    health = examine(settings.data_dir)
    if configured.plan.kind == "mosquitto" or not health.outdated:
        reloaded = configured.reload()
        if not reloaded or not health.outdated:
            return reloaded
    while time.monotonic() < limit and health.running:
        if health.well and not health.outdated:
            return True
        time.sleep(0.2)
        health = examine(settings.data_dir)
    return False


_IN_USE: Final = "The running broker uses it now."


def reloaded_text(done: bool, kind: Kind, nodes: Mapping[str, str]) -> str:
    """Whether the broker uses a change, and if not, how to make it."""
    if done:
        return _IN_USE
    if nodes:
        return "\n".join(
            [
                "The nodes do not use it yet. Copy users.conf from each directory to its machine:",
                *_node_lines(nodes),
                "Then, in that directory:  nats-server --signal reload=broker.pid",
            ]
        )
    if kind == "nats":
        return (
            "The broker uses it from its next start: allomfree-collector run\n"
            "(If the collector is already running, restart it.)"
        )
    return (
        "The broker must reload its configuration: send mosquitto a SIGHUP, as in: systemctl "
        "reload mosquitto"
    )


def _nodes(configured: BrokerDirectory) -> dict[str, str]:
    return {node: str(place) for node, place in configured.nodes.items()}


def _node_lines(nodes: Mapping[str, str]) -> list[str]:
    return [f"    {node}: {directory}" for node, directory in nodes.items()]
