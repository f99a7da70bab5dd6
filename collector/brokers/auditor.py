"""What the auditor does at a broker: set NATS's limits, and probe what must be refused.

Limits that NATS's configuration cannot express: it keeps retained messages and queues in streams
that it creates itself, without limits, and resets the retained ones at every start. So the auditor
sets the limits whenever the broker has started, by NATS's own interface, which MQTT clients can
reach where they are allowed to:

- only what is for everyone can be retained; a device that asks for it waits five seconds in vain;
- what an earlier configuration let devices retain is deleted;
- all queues together have a maximum size and age; the oldest messages are dropped first, and the
  device of a dropped report sends it again until it is on a receipt page.

Probing, because a broker's answers prove nothing: mosquitto grants subscriptions that its access
list forbids, and NATS acknowledges publishes that it drops. Everything happens below a name that
no campaign can have. A refusal is proven by what does *not* arrive before something that was sent
later and is allowed to arrive.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from collector.brokers.config import (
    AUDITOR,
    COLLECTOR,
    LARGEST_PACKET,
    LARGEST_STORE,
    PROBE,
    READER_PROBE,
    SESSION_DAYS,
    TRY,
    UNOPENED_CAMPAIGN,
    BrokerPlan,
    subjects,
)
from collector.brokers.directory import BrokerDirectory
from collector.links import Connect, Link, Will
from collector.links.mqtt import PahoLink
from protocol_spec import AllomfreeError
from protocol_spec.programs.cli import Finding
from protocol_spec.programs.mqtt import MQTT_311
from protocol_spec.programs.settings import BrokerUnreachable, BrokerUrl, Credentials
from protocol_spec.programs.system import random_client_id
from protocol_spec.topics import CANARY_CAMPAIGN, VERSION, canary, everything_of, for_all

log = logging.getLogger("allomfree.broker")

# --- limits of NATS --------------------------------------------------------------------------

ANSWER_SECONDS: Final = 10.0
CLUSTER_SECONDS: Final = 2.0  # much less than a leader's lease, which continues meanwhile
_RETAINED, _QUEUED = "$MQTT_rmsgs", "$MQTT_msgs"
_NANOSECONDS: Final = 10**9


def limiting(directory: Path, url: BrokerUrl, connect: Connect) -> Connect:
    """Set the limits of a cluster configured here whenever we connect to a node: its nodes are
    started elsewhere, and each resets its limits when it starts."""
    if not BrokerDirectory.exists(directory):
        return connect
    configured = BrokerDirectory.load(directory)
    if url.host not in configured.plan.nodes:
        return connect

    def limited(will: Will | None) -> Link:
        link = connect(will)
        limit_nats(configured, url, CLUSTER_SECONDS)
        return link

    return limited


def limit_nats(
    configured: BrokerDirectory, url: BrokerUrl | None = None, seconds: float = ANSWER_SECONDS
) -> bool:
    """Set the limits of a broker that has just started; False, with a warning, if it refused."""
    waiting: set[int] = set()
    try:
        link = PahoLink(
            url or configured.plan.local_url,
            configured.credentials(AUDITOR),
            client_id=random_client_id("limit"),
            version=MQTT_311,
            persistent=False,
        )
        link.connect()
        for topic, body in limit_requests(configured.plan):
            waiting.add(link.publish(topic, body, retain=False))
        until = time.monotonic() + seconds
        while waiting and link.lost is None and time.monotonic() < until:
            link.step(0.1)
            waiting -= link.answers().keys()
        link.close()
    except (AllomfreeError, OSError) as error:
        log.warning("the broker's limits could not be set: %s", error)
        return False
    if waiting:
        log.warning("the broker's limits could not be set; see: allomfree-collector doctor")
    return not waiting


def limit_requests(plan: BrokerPlan) -> Iterator[tuple[str, bytes]]:
    """Topic and body of each request, in this order."""
    retained = [for_all(plan.namespace)]
    if plan.home_assistant:
        retained.append(f"{plan.home_assistant}/device/+/config")
    kept = [f"$MQTT.rmsgs.{subject}" for topic in retained for subject in subjects(topic)]
    yield _request(
        "UPDATE",
        _RETAINED,
        name=_RETAINED,
        storage="file",
        subjects=kept,
        retention="limits",
        max_msgs_per_subject=1,
        num_replicas=plan.replicas,
    )
    yield _request("PURGE", _RETAINED, filter=f"$MQTT.rmsgs.{plan.namespace}.{VERSION}.*.up.>")
    yield _request(
        "UPDATE",
        _QUEUED,
        name=_QUEUED,
        storage="file",
        subjects=["$MQTT.msgs.>"],
        retention="interest",
        max_bytes=LARGEST_STORE,
        max_age=SESSION_DAYS * 86_400 * _NANOSECONDS,
        discard="old",
        num_replicas=plan.replicas,
    )


def _request(verb: str, stream: str, **body: Any) -> tuple[str, bytes]:
    return f"$JS/API/STREAM/{verb}/{stream}", json.dumps(body).encode()


# --- probing access --------------------------------------------------------------------------

DELIVERY_SECONDS: Final = 5.0
PUBLISH_SECONDS: Final = 10.0  # NATS takes five seconds to find that it cannot retain a message
_OTHER: Final = "doctor-other"
_REMEDY: Final = "use the configuration that broker-config wrote"


class _Client:
    """A client of the broker that publishes, and remembers what it received."""

    def __init__(self, link: PahoLink, *, acknowledges: bool = True) -> None:
        self.link = link
        self.received: set[bytes] = set()
        self._acknowledges = acknowledges
        link.connect()

    def wait(self, done: Callable[[], bool], seconds: float = DELIVERY_SECONDS) -> None:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not self.link.lost and not done():
            arrived = self.link.step(0.05)
            if self._acknowledges:
                self.link.acknowledge(arrived)
            self.received.update(message.payload for message in arrived)

    def subscribe(self, topic_filter: str) -> None:
        wanted = self.link.granted + 1
        # QoS 0, because NATS stores what it delivers with QoS 1, in an order per subscription.
        self.link.subscribe([topic_filter], qos=0)
        self.wait(lambda: self.link.granted == wanted)

    def publish(self, topic: str, *, retain: bool = False, size: int = 0) -> bytes:
        """Publish a random message and wait for the broker's answer; returns the message."""
        message = random_client_id("canary").encode().ljust(size, b".")
        sent = self.link.publish(topic, message, retain=retain)
        self.wait(lambda: sent in self.link.answers(), PUBLISH_SECONDS)
        return message


class AccessProbe:
    """Tries at one broker, under different names, what each may and may not do."""

    def __init__(self, configured: BrokerDirectory, broker: BrokerUrl) -> None:
        self._configured = configured
        self._broker = broker
        self._canary = partial(canary, namespace=configured.plan.namespace)
        self._marker = self._canary("pub", "try")
        self._mosquitto = configured.plan.kind == "mosquitto"
        self._stack = ExitStack()

    def examine(self, *, collector_free: bool) -> Iterator[Finding]:
        """All probes; with `collector_free` also as the collector, whose session must be idle."""
        with self._stack:
            try:
                self._client(AUDITOR)  # a refusal means something only if others are let in
                self._stack.close()
            except BrokerUnreachable as error:
                yield Finding("access", False, f"could not be tried: {error}")
                return
            yield self._refused("nobody connects without a credential", Credentials())
            wrong = Credentials(PROBE, "not the password")
            yield self._refused("nobody connects with a wrong credential", wrong)
            try:
                yield from self._devices()
                yield from self._limits()
                if READER_PROBE in self._configured.users:
                    yield from self._readers()
                yield from self._collector(collector_free)
            except BrokerUnreachable as error:
                yield Finding("access", False, f"probing was interrupted: {error}")

    def _devices(self) -> Iterator[Finding]:
        up, down = self._canary("up", PROBE, *TRY), self._canary("down", PROBE, "response")
        other_up = self._canary("up", _OTHER, "report")
        # A collector would count what the auditor publishes there; NATS refuses the subscription.
        read_up = self._canary("up", _OTHER, *TRY) if self._mosquitto else other_up
        other_down = self._canary("down", _OTHER, "response")
        pub = self._canary("pub", "other")
        yield self._write(PROBE, "a device reports as itself", up, allowed=True)
        yield self._write(PROBE, "a device does not report as another", other_up)
        yield self._write(PROBE, "a device does not publish as the collector", pub)
        yield self._write(PROBE, "a device does not answer other devices", other_down)
        yield self._read(PROBE, "a device reads what is for everyone", pub, allowed=True)
        yield self._read(PROBE, "a device reads what is for itself", down, allowed=True)
        yield self._read(PROBE, "a device does not read reports", read_up)
        yield self._read(PROBE, "a device does not read what is for another", other_down)

    def _limits(self) -> Iterator[Finding]:
        """How much of the broker one device can use up."""
        yield self._take_over()
        up, other = self._canary("up", PROBE, *TRY), self._canary("up", PROBE, "other")
        yield self._write(PROBE, "a device sends reports and requests only", other)
        device = self._client(PROBE)
        device.publish(up, size=LARGEST_PACKET + 1)  # costs the device its connection
        yield self._verdict("a device does not send large messages", device.link.lost is not None)
        if not self._mosquitto:
            yield self._retained(up)
            return
        first = self._client(PROBE)
        self._client(PROBE)  # ends the first connection, whatever its name
        first.wait(lambda: False)
        yield self._verdict("a device has one session", first.link.lost is not None)
        # mosquitto keeps a message on each topic that a device may write: so they are few.
        what = "a device reports to known campaigns only"
        if self._configured.plan.campaigns is None:
            yield Finding(what, True, "not tried: no campaign is known here")
        else:
            topic = self._canary("up", PROBE, "report", campaign=UNOPENED_CAMPAIGN)
            yield self._write(PROBE, what, topic)

    def _readers(self) -> Iterator[Finding]:
        """They read and are never counted, neither in their own name nor in a device's."""
        pub, request = self._canary("pub", "other"), self._canary("up", PROBE, "request")
        yield self._read(READER_PROBE, "a reader reads results", pub, allowed=True)
        for name, kind in ((READER_PROBE, TRY), (READER_PROBE, ("report",)), (PROBE, ("report",))):
            topic = self._canary("up", name, *kind)
            found = self._write(READER_PROBE, "a reader does not report", topic)
            if not found.ok:
                break
        yield found
        yield self._write(READER_PROBE, "a reader does not ask to forget", request)
        yield self._write(READER_PROBE, "a reader does not publish as the collector", pub)

    def _collector(self, free: bool) -> Iterator[Finding]:
        limits = "the collector does not write reports"
        if not free:
            text = "not tried while the service uses the session; stop it and run doctor again"
            yield Finding(limits, True, text)
            return
        pub, report = self._canary("pub", "other"), self._canary("up", _OTHER, "report")
        yield self._write(COLLECTOR, "the collector publishes to everyone", pub, allowed=True)
        yield self._write(COLLECTOR, limits, report)

    def _retained(self, topic: str) -> Finding:
        """A later subscriber does not find what a device asked to be retained."""
        device = self._client(PROBE)
        word = device.publish(topic, retain=True)
        auditor = self._client(AUDITOR)
        auditor.subscribe(topic)
        auditor.subscribe(self._marker)
        later = auditor.publish(self._marker)
        auditor.wait(lambda: later in auditor.received)
        kept = word in auditor.received
        if kept:
            device.link.publish(topic, b"", retain=True)
            device.wait(lambda: bool(device.link.answers()))
        return self._verdict("a device does not store messages", not kept)

    def _take_over(self) -> Finding:
        """A session cannot be taken over by its name; where the broker does not tie names to
        users, because nobody can guess it."""
        what = "nobody takes over another's session"
        if not self._mosquitto:
            return Finding(what, True, "its name is random and secret")
        name = random_client_id("try")
        victim = self._client(AUDITOR, name)
        self._client(PROBE, name)
        victim.publish(self._marker)
        return self._verdict(what, victim.link.lost is None)

    def _verdict(self, what: str, refused: bool) -> Finding:
        self._stack.close()
        return Finding(what, refused, "refused" if refused else f"POSSIBLE; {_REMEDY}")

    def _refused(self, what: str, credentials: Credentials) -> Finding:
        trusting = replace(credentials, ca_file=self._configured.credentials(AUDITOR).ca_file)
        link = PahoLink(self._broker, trusting, client_id=random_client_id("try"), persistent=False)
        try:
            link.connect()
        except BrokerUnreachable:
            return Finding(what, True, "refused")
        link.close()
        return Finding(what, False, f"ACCEPTED; {_REMEDY}")

    def _write(self, name: str, what: str, topic: str, *, allowed: bool = False) -> Finding:
        """A client publishes; the auditor receives it, or only what it sent itself afterwards."""
        auditor, writer = self._client(AUDITOR), self._client(name)
        for campaign in (CANARY_CAMPAIGN, UNOPENED_CAMPAIGN):
            auditor.subscribe(everything_of(campaign, self._configured.plan.namespace))
        word = writer.publish(topic)
        return self._judge(what, auditor, word, auditor.publish(self._marker), allowed)

    def _read(self, name: str, what: str, topic: str, *, allowed: bool = False) -> Finding:
        """The auditor publishes; the other receives it, or only what it may read afterwards."""
        auditor, reader = self._client(AUDITOR), self._client(name)
        reader.subscribe(topic)
        if reader.link.denied:
            self._stack.close()
            return Finding(what, not allowed, "refused" if not allowed else f"REFUSED; {_REMEDY}")
        reader.subscribe(self._marker)
        word = auditor.publish(topic)
        return self._judge(what, reader, word, auditor.publish(self._marker), allowed)

    def _judge(
        self, what: str, listener: _Client, word: bytes, later: bytes, allowed: bool
    ) -> Finding:
        # NATS serves each subscription separately: what was sent later may arrive first.
        ordered = self._mosquitto or not allowed
        listener.wait(lambda: later in listener.received and (ordered or word in listener.received))
        came_through = word in listener.received
        self._stack.close()
        if later not in listener.received:
            return Finding(what, False, "could not be tried: the broker delivers nothing here")
        fact = ("works" if allowed else "possible") if came_through else "refused"
        ok = came_through == allowed
        return Finding(what, ok, fact if ok else f"{fact.upper()}; {_REMEDY}")

    def _client(self, name: str, client_id: str | None = None) -> _Client:
        """A connection that is closed after the probe. Messages that wait for the collector are
        not acknowledged here, and a clean session in its name would drop them."""
        collector = name == COLLECTOR
        link = PahoLink(
            self._broker,
            self._configured.credentials(name),
            client_id=client_id or random_client_id("try"),
            persistent=collector and self._mosquitto,
        )
        self._stack.callback(link.close)
        return _Client(link, acknowledges=not collector)
