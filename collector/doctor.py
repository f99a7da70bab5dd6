"""Checks data, key, service, broker and campaigns: findings, and the next step where one failed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from collector.brokers.choose import choose_broker
from collector.brokers.directory import BrokerDirectory
from collector.brokers.plan import RENEW_DAYS
from collector.brokers.probe import AccessProbe
from collector.data_dir import client_id, read_store
from collector.device_key import DeviceKey
from collector.errors import CollectorError
from collector.health import examine
from collector.mqtt.link import PahoLink
from collector.settings import Settings
from protocol_spec import AllomfreeError, Topics
from protocol_spec.programs.address import BrokerUrl
from protocol_spec.programs.findings import Finding
from protocol_spec.programs.mqtt import MQTT_5
from protocol_spec.programs.names import unguessable
from protocol_spec.programs.private_files import exposed_mode


def examine_all(settings: Settings) -> list[Finding]:
    """All checks. Nothing is changed."""
    findings = [*_data(settings)]
    health = examine(settings.data_dir)
    findings.append(Finding("service", health.well, health.finding))
    findings += _broker(settings)
    return findings


def _data(settings: Settings) -> Iterator[Finding]:
    if not settings.data_dir.exists():
        yield Finding("data", False, f"{settings.data_dir} does not exist; open a campaign first")
        return
    open_to_others = exposed_mode(settings.data_dir) is not None
    private = f"{settings.data_dir} is private"
    exposed = f"other users can read {settings.data_dir}; run: chmod 700 {settings.data_dir}"
    yield Finding("data", not open_to_others, exposed if open_to_others else private)
    try:
        store = read_store(settings.data_dir)
        known = store.campaigns()
        names = [c.name for c in known if c.closed is None]
        received = store.received()
        sound = received == sum(store.outcomes().values())
        store.close()
    except CollectorError as error:
        yield Finding("database", False, str(error))
        return
    yield Finding(
        "database", sound, "every message received has one outcome" if sound else "damaged"
    )
    yield Finding("campaigns", bool(known), ", ".join(names) or "none open; see `open`")
    key = settings.data_dir / "device.key"
    try:
        if received or key.exists():
            DeviceKey(key, make=False)
        yield Finding(
            "device key", True, "in place" if key.exists() else "created at the first run"
        )
    except CollectorError as error:
        yield Finding("device key", False, str(error))


def _broker(settings: Settings) -> Iterator[Finding]:
    try:
        if (settings.broker_dir / "port").exists() or BrokerDirectory.exists(settings.broker_dir):
            settings, _ = choose_broker(settings)  # looking must not set an embedded broker up
        broker = settings.required_broker()
        if settings.username is not None:
            yield from _named(settings, broker)
            yield from _access(settings, broker)
            return
        link = PahoLink(
            broker, settings.credentials(), client_id=unguessable("doctor"), persistent=False
        )
        link.connect()
    except (AllomfreeError, OSError) as error:
        yield Finding("broker", False, str(error))
        return
    yield _answers(broker, link)
    yield from _manifests(settings, link)
    link.close()


def _access(settings: Settings, broker: BrokerUrl) -> Iterator[Finding]:
    """Whether the broker enforces the access list: tried, where it was configured here."""
    path = settings.broker_dir.absolute()
    if not BrokerDirectory.exists(path):
        text = "not tried: only a broker configured by broker-config has a test device"
        yield Finding("access", True, text)
        return
    configured = BrokerDirectory.load(path)
    running = examine(settings.data_dir).running
    # NATS tells sessions apart by their own names, so there the collector's is not disturbed.
    free = not running or configured.plan.kind == "nats"
    yield from AccessProbe(configured, broker).examine(collector_free=free)
    yield _certificate(configured)


def _certificate(configured: BrokerDirectory) -> Finding:
    try:
        left = configured.certificate_days_left()
    except AllomfreeError as error:
        return Finding("certificate", False, str(error))
    advice = ""
    if left < RENEW_DAYS:
        how = "" if configured.plan.own_certificate else " with --server-cert"
        advice = f"; run broker-config again{how} to renew it"
    return Finding("certificate", left >= 30, f"the broker's is valid for {left} more days{advice}")


def _named(settings: Settings, broker: BrokerUrl) -> Iterator[Finding]:
    """A broker may use the user name as the session's: a check with it would take the session over,
    and a clean one would drop the messages in it. So ask the service, or keep the session."""
    beat = examine(settings.data_dir).beat
    if beat is not None:
        yield Finding("broker", beat.status.connected, f"{broker}, as the service sees it")
        return
    known = settings.client_id is not None or (settings.data_dir / "session").exists()
    name = client_id(settings) if known else unguessable("doctor")
    link = PahoLink(broker, settings.credentials(), client_id=name, persistent=known)
    link.connect()
    yield _answers(broker, link)
    link.close()


def _answers(broker: BrokerUrl, link: PahoLink) -> Finding:
    kind = "encrypted" if broker.tls else "not encrypted"
    version = "5" if link.version == MQTT_5 else "3.1.1"
    return Finding("broker", True, f"{broker} answers, MQTT {version} ({kind})")


def _manifests(settings: Settings, link: PahoLink) -> Iterator[Finding]:
    """Whether devices would find each open campaign: its manifest must be retained and right."""
    try:
        store = read_store(settings.data_dir)
    except CollectorError:
        return
    wanted = {
        Topics(c.name, settings.namespace).manifest: c for c in store.campaigns() if not c.closed
    }
    store.close()
    link.subscribe(wanted)
    found: dict[str, bytes] = {}
    limit = time.monotonic() + 3.0
    while len(found) < len(wanted) and time.monotonic() < limit and not link.lost:
        found.update({m.topic: m.payload for m in link.step(0.1) if m.topic is not None})
    for topic, campaign in wanted.items():
        right = found.get(topic) == campaign.manifest.to_bytes()
        missing = "devices cannot find its manifest; is the service running with this broker?"
        yield Finding(campaign.name, right, "can be joined" if right else missing)
