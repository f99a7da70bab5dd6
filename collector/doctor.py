"""Checks data, key, service, broker and campaigns: findings, and the next step where one failed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from collector.brokers.auditor import AccessProbe
from collector.brokers.choose import choose_broker
from collector.brokers.config import RENEW_DAYS, BrokerPlan
from collector.brokers.directory import BrokerDirectory, altered
from collector.data_dir import client_id, read_store
from collector.device_key import DeviceKey
from collector.errors import CollectorError
from collector.health import Health, examine
from collector.links.mqtt import NOT_SHARED, PahoLink
from collector.links.stream import inspect_stream
from collector.settings import Settings
from protocol_spec import AllomfreeError, Topics
from protocol_spec.programs.cli import Finding
from protocol_spec.programs.mqtt import MQTT_5
from protocol_spec.programs.settings import BrokerUrl
from protocol_spec.programs.system import exposed_mode, random_client_id, synchronised


def examine_all(settings: Settings) -> list[Finding]:
    """All checks. Nothing is changed."""
    findings = [*_data(settings)]
    health = examine(settings.data_dir)
    findings.append(Finding("service", health.well, health.finding))
    findings.append(_clock(health))
    findings += _broker(settings)
    return findings


def _clock(health: Health) -> Finding:
    """Rounds end by this clock. That nothing keeps it right is no fault yet; hints are."""
    hint = "" if health.beat is None else health.beat.status.clock
    if hint:
        return Finding("clock", False, f"{hint}; compare it with another one, or set up NTP")
    kept = {
        True: "kept right by NTP or the like",
        False: "nothing keeps it right, as far as the system knows; rounds end by it: set up NTP",
        None: "whether something keeps it right cannot be told here",
    }
    return Finding("clock", True, kept[synchronised()])


def _data(settings: Settings) -> Iterator[Finding]:
    if not settings.data_dir.exists():
        yield Finding("data", False, f"{settings.data_dir} does not exist; open a campaign first")
        return
    open_to_others = exposed_mode(settings.data_dir) is not None
    private = f"{settings.data_dir} is private"
    exposed = f"other users can read {settings.data_dir}; run: chmod 700 {settings.data_dir}"
    yield Finding("data", not open_to_others, exposed if open_to_others else private)
    try:
        store = read_store(settings.data_dir, settings.store)
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
        yield from _streams(settings)
        if settings.username is not None:
            yield from _named(settings, broker)
            yield from _access(settings, broker)
            return
        link = PahoLink(
            broker, settings.credentials(), client_id=random_client_id("doctor"), persistent=False
        )
        link.connect()
    except (AllomfreeError, OSError) as error:
        yield Finding("broker", False, str(error))
        return
    yield _answers(broker, link)
    yield from _shared(settings, link)
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
    yield _configuration(configured)
    yield _listener(configured.plan)
    if configured.plan.kind == "nats":
        yield _stored(configured)
    yield _certificate(configured)


def _configuration(configured: BrokerDirectory) -> Finding:
    """Some limits show only after days or gigabytes: at least they must be written down."""
    differing = altered(configured)
    if not differing:
        return Finding("configuration", True, "as broker-config writes it")
    names = " and ".join(differing)
    remedy = f"run: allomfree-collector broker-config {configured.plan.kind}"
    return Finding("configuration", False, f"{names} in {configured.path} differ; {remedy}")


def _listener(plan: BrokerPlan) -> Finding:
    if not plan.everywhere:
        return Finding("listener", True, f"{plan.bind} only, port {plan.port}")
    advice = "for one network only, run broker-config again with --bind ADDRESS"
    return Finding("listener", True, f"EVERY interface, port {plan.port}; {advice}")


def _stored(configured: BrokerDirectory) -> Finding:
    """NATS cannot limit a device's sessions, but they can be counted. Agents leave none."""
    store = configured.path / "jetstream"  # in which NATS makes a directory of the same name
    found = sum(1 for _ in store.glob("jetstream/$G/streams/$MQTT_msgs/obs/*"))
    enrolled = len(configured.enrolled)
    told = f"{found} stored subscriptions, {enrolled} enrolled devices"
    if found <= 16 + 4 * enrolled:
        return Finding("sessions", True, told)
    return Finding(
        "sessions",
        False,
        f"{told}: somebody leaves sessions behind. Revoke who does, stop the collector, delete "
        f"{store} and start it again: devices send again what is missing",
    )


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
    name = client_id(settings) if known else random_client_id("doctor")
    link = PahoLink(broker, settings.credentials(), client_id=name, persistent=known)
    link.connect()
    yield _answers(broker, link)
    yield from _shared(settings, link)
    link.close()


def _streams(settings: Settings) -> Iterator[Finding]:
    """Workers that share a store pull from NATS's own stream, where its address is known."""
    if settings.store is not None:
        for address in settings.stream or ():
            address.check_plaintext(settings.allow_plaintext)
            yield inspect_stream(address, settings.credentials(), settings.namespace)


def _shared(settings: Settings, link: PahoLink) -> Iterator[Finding]:
    """Without a stream, workers need a broker that deals reports out among them. The embedded one
    has a stream, whose port the service finds by itself."""
    embedded = (settings.broker_dir / "port").exists()
    if settings.store is None or settings.stream is not None or embedded:
        return
    if link.sharing is None:
        yield Finding("shared subscriptions", True, "workers can share the reports of this broker")
    else:
        yield Finding("shared subscriptions", False, NOT_SHARED.format(link.name, link.sharing))


def _answers(broker: BrokerUrl, link: PahoLink) -> Finding:
    kind = "encrypted" if broker.tls else "not encrypted"
    version = "5" if link.version == MQTT_5 else "3.1.1"
    return Finding("broker", True, f"{broker} answers, MQTT {version} ({kind})")


def _manifests(settings: Settings, link: PahoLink) -> Iterator[Finding]:
    """Whether devices would find each open campaign: its manifest must be retained and right."""
    try:
        store = read_store(settings.data_dir, settings.store)
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
