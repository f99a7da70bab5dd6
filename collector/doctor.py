"""Checks data, key, service, clock, broker and campaigns; each failed one names the next step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from collector.brokers.auditor import AccessProbe
from collector.brokers.choose import choose_broker
from collector.brokers.config import RENEW_DAYS
from collector.brokers.credentials import server_expires
from collector.brokers.directory import BrokerDirectory
from collector.data_dir import DeviceKey, client_id, read_store
from collector.errors import CollectorError
from collector.health import LEAST_DAYS, RENEW, Health, examine, findings
from collector.links.mqtt import NOT_SHARED, PahoLink
from collector.links.stream import inspect_stream
from collector.settings import Settings
from protocol_spec import AllomfreeError, Topics
from protocol_spec.programs.cli import Finding, warned
from protocol_spec.programs.mqtt import MQTT_5
from protocol_spec.programs.settings import BrokerUrl
from protocol_spec.programs.system import exposed_mode, random_client_id, synchronised


def examine_all(settings: Settings) -> list[Finding]:
    """All checks. Nothing is changed."""
    health = examine(settings.data_dir)
    service, *warnings = findings(settings.data_dir, health)
    if not health.running:  # as after `restore`: then there is nothing wrong with it yet
        service = warned(service.what, service.text, service.step)
    clock = [] if any(each.what == "clock" for each in warnings) else [_clock()]
    return [*_data(settings), service, *warnings, *clock, *_broker(settings, health)]


def _data(settings: Settings) -> Iterator[Finding]:
    place = settings.data_dir
    if not place.exists():
        step = "Open a campaign first: allomfree-collector open MANIFEST"
        yield Finding("data", False, f"{place} does not exist", step)
        return
    if exposed_mode(place) is None:
        yield Finding("data", True, f"{place} is private")
    else:
        yield Finding("data", False, f"other users can read {place}", f"Run: chmod 700 {place}")
    try:
        with closing(read_store(place, settings.store)) as store:
            known, received = store.campaigns(), store.received()
            sound = received == sum(store.outcomes().values())
    except CollectorError as error:
        yield Finding("database", False, str(error))
        return
    if sound:
        yield Finding("database", True, "every message received has one outcome")
    else:
        step = "Restore the last backup: allomfree-collector restore DIRECTORY"
        yield Finding("database", False, "some messages have no outcome: it is damaged", step)
    if known:
        names = ", ".join(c.name for c in known if c.closed is None)
        yield Finding("campaigns", True, names or "all are closed")
    else:
        step = "Open one: allomfree-collector open MANIFEST"
        yield warned("campaigns", "none was opened yet", step)
    key = place / "device.key"
    try:
        if received or key.exists():
            DeviceKey(key, make=False)
        text = "in place" if key.exists() else "created at the first run"
        yield Finding("device key", True, text)
    except CollectorError as error:
        yield Finding("device key", False, str(error))


def _clock() -> Finding:
    """Rounds end by this clock. That it is not synchronised is no fault yet."""
    known = synchronised()
    if known is False:
        text = "the system clock isn't synchronised, and rounds end by it"
        return warned("clock", text, "Set up NTP")
    text = "does not report whether its clock is synchronised"
    return Finding("clock", True, f"the system {text}" if known is None else "it is synchronised")


def _broker(settings: Settings, health: Health) -> Iterator[Finding]:
    ours = settings.broker is None  # an embedded broker, unless another is configured here
    try:
        if BrokerDirectory.exists(settings.broker_dir):
            settings, embedded = choose_broker(settings)
            ours = embedded is not None
        elif (settings.broker_dir / "port").exists():  # a check must not set up an embedded broker
            settings, _ = choose_broker(settings)
        broker = settings.required_broker()
        yield from _streams(settings)
        if settings.username is not None:
            yield from _as_user(settings, broker)
            yield from _configured(settings, broker)
            return
        link = PahoLink(
            broker, settings.credentials(), client_id=random_client_id("doctor"), persistent=False
        )
        link.connect()
    except (AllomfreeError, OSError) as error:
        if ours and not health.running:
            step = "Start it, then check again: allomfree-collector run"
            yield warned("broker", "not checked: the collector starts it", step)
        else:
            yield Finding("broker", False, str(error))
        return
    yield _answers(broker, link)
    yield from _shared(settings, link)
    yield from _manifests(settings, link)
    link.close()


def _as_user(settings: Settings, broker: BrokerUrl) -> Iterator[Finding]:
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


def _configured(settings: Settings, broker: BrokerUrl) -> Iterator[Finding]:
    """Whether a broker configured here enforces its access list, and how it is set up."""
    path = settings.broker_dir.absolute()
    if not BrokerDirectory.exists(path):
        text = "not tried: only a broker configured by broker-config has a test device"
        yield Finding("access", True, text)
        return
    configured = BrokerDirectory.load(path)
    plan = configured.plan
    running = examine(settings.data_dir).running
    # NATS distinguishes sessions by their names, so there the collector's is not disturbed.
    free = not running or plan.kind == "nats"
    yield from AccessProbe(configured, broker).examine(collector_free=free)
    # Some limits show only after days or gigabytes: at least the files must be right.
    altered = configured.altered()
    again = f"allomfree-collector broker-config {plan.kind}"
    if altered:
        text = f"{' and '.join(altered)} in {path} differ from what broker-config writes"
        yield Finding("configuration", False, text, f"Run: {again}")
    else:
        yield Finding("configuration", True, "as broker-config writes it")
    where, step = f"{plan.bind} only, port {plan.port}", ""
    if plan.everywhere:
        where, step = (
            f"EVERY interface, port {plan.port}",
            f"For one network: {again} --bind ADDRESS",
        )
    yield Finding("listener", True, where, step)
    if plan.kind == "nats":
        yield _sessions(configured)
    yield _certificate(configured)


def _sessions(configured: BrokerDirectory) -> Finding:
    """NATS cannot limit a device's sessions, but they can be counted. Agents leave none."""
    store = configured.path / "jetstream"  # in which NATS makes a directory of the same name
    found = sum(1 for _ in store.glob("jetstream/$G/streams/$MQTT_msgs/obs/*"))
    enrolled = len(configured.enrolled)
    counts = f"{found} stored subscriptions, {enrolled} enrolled devices"
    if found <= 16 + 4 * enrolled:
        return Finding("sessions", True, counts)
    step = (
        f"Revoke that client, stop the collector, delete {store} and start it again: devices send "
        "again what is missing"
    )
    return Finding("sessions", False, f"{counts}: a client leaves sessions behind", step)


def _certificate(configured: BrokerDirectory) -> Finding:
    expires = server_expires(configured.path / "tls")
    if expires is None:
        return Finding("certificate", False, "the broker's certificate cannot be read", RENEW)
    left = int((expires - time.time()) // 86_400)
    text = f"the broker's is valid for {left} more days"
    return Finding("certificate", left >= LEAST_DAYS, text, RENEW if left < RENEW_DAYS else "")


def _streams(settings: Settings) -> Iterator[Finding]:
    """Workers that share a store pull from NATS's own stream, if its address is known."""
    if settings.store is not None:
        for address in settings.stream or ():
            address.check_plaintext(settings.allow_plaintext)
            yield inspect_stream(address, settings.credentials(), settings.namespace)


def _shared(settings: Settings, link: PahoLink) -> Iterator[Finding]:
    """Without a stream, workers need a broker that distributes reports among them. The embedded
    broker has a stream, whose port the service finds by itself."""
    embedded = (settings.broker_dir / "port").exists()
    if settings.store is None or settings.stream is not None or embedded:
        return
    text = "workers can share the reports of this broker"
    if link.sharing is not None:
        text = NOT_SHARED.format(link.name, link.sharing)
    yield Finding("shared subscriptions", link.sharing is None, text)


def _answers(broker: BrokerUrl, link: PahoLink) -> Finding:
    kind = "encrypted" if broker.tls else "not encrypted"
    version = "5" if link.version == MQTT_5 else "3.1.1"
    return Finding("broker", True, f"{broker} answers, MQTT {version} ({kind})")


def _manifests(settings: Settings, link: PahoLink) -> Iterator[Finding]:
    """Whether devices would find each open campaign: its manifest must be retained and correct."""
    try:
        with closing(read_store(settings.data_dir, settings.store)) as store:
            campaigns = [c for c in store.campaigns() if not c.closed]
    except CollectorError:
        return
    wanted = {Topics(c.name, settings.namespace).manifest: c for c in campaigns}
    link.subscribe(wanted)
    found: dict[str, bytes] = {}
    limit = time.monotonic() + 3.0
    while len(found) < len(wanted) and time.monotonic() < limit and not link.lost:
        found.update({m.topic: m.payload for m in link.step(0.1) if m.topic is not None})
    for topic, campaign in wanted.items():
        right = found.get(topic) == campaign.manifest.to_bytes()
        text, step = "devices cannot find its manifest", "Is the collector using this broker?"
        yield Finding(campaign.name, right, *(("can be joined",) if right else (text, step)))
