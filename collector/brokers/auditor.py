"""What NATS may keep for devices: limits that its configuration cannot express.

NATS keeps retained messages and queues in streams of its own making, without limits, and changes
back what it makes retained messages of at every start. So the auditor sets the limits whenever the
broker has started, by NATS's own interface, which MQTT clients reach too where they are allowed to:

- only what is for all can be retained: a device that asks for it waits five seconds for nothing;
- what an earlier configuration let devices retain is deleted;
- queues together have a largest size, and an oldest message; what is oldest goes first, and a
  report that went is sent again by its device until it is on a receipt page.
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
    NO_CAMPAIGN,
    PROBE,
    READER_PROBE,
    SESSION_DAYS,
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

ANSWER_SECONDS: Final = 10.0
CLUSTER_SECONDS: Final = 2.0  # much less than a leader's lease, which goes on meanwhile
_RETAINED, _QUEUED = "$MQTT_rmsgs", "$MQTT_msgs"
_NANOSECONDS: Final = 10**9

log = logging.getLogger("allomfree.broker")


def limiting(directory: Path, url: BrokerUrl, connect: Connect) -> Connect:
    """Of a cluster that was configured here, set the limits whenever we connect to a node: nobody
    here starts its nodes, and a node sets its own when it starts."""
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
    try:
        done = _ask(configured, url or configured.plan.local_url, seconds)
    except (AllomfreeError, OSError) as error:
        log.warning("the broker's limits could not be set: %s", error)
        return False
    if not done:
        log.warning("the broker's limits could not be set; see: allomfree-collector doctor")
    return done


def _ask(configured: BrokerDirectory, url: BrokerUrl, seconds: float) -> bool:
    link = PahoLink(
        url,
        configured.credentials(AUDITOR),
        client_id=random_client_id("limit"),
        version=MQTT_311,
        persistent=False,
    )
    link.connect()
    asked = requests(configured.plan)
    waiting = {link.publish(topic, body, retain=False) for topic, body in asked}
    until = time.monotonic() + seconds
    while waiting and link.lost is None and time.monotonic() < until:
        link.step(0.1)
        waiting -= link.answers().keys()
    link.close()
    return not waiting


def requests(plan: BrokerPlan) -> Iterator[tuple[str, bytes]]:
    """Topic and body of what has to be asked for, in this order."""
    retained = [for_all(plan.namespace)]
    if plan.home_assistant:
        retained.append(f"{plan.home_assistant}/device/+/config")
    kept = [f"$MQTT.rmsgs.{subject}" for topic in retained for subject in subjects(topic)]
    yield _request(
        "UPDATE",
        _RETAINED,
        subjects=kept,
        retention="limits",
        max_msgs_per_subject=1,
        num_replicas=plan.replicas,
    )
    yield _request("PURGE", _RETAINED, filter=f"$MQTT.rmsgs.{plan.namespace}.{VERSION}.*.up.>")
    yield _request(
        "UPDATE",
        _QUEUED,
        subjects=["$MQTT.msgs.>"],
        retention="interest",
        max_bytes=LARGEST_STORE,
        max_age=SESSION_DAYS * 86_400 * _NANOSECONDS,
        discard="old",
        num_replicas=plan.replicas,
    )


def _request(verb: str, stream: str, **body: Any) -> tuple[str, bytes]:
    if verb == "UPDATE":
        body |= {"name": stream, "storage": "file"}
    return f"$JS/API/STREAM/{verb}/{stream}", json.dumps(body).encode()


# --- Tries what must be refused, because a broker's answers prove nothing: mosquitto grants


ARRIVES: Final = 5.0
DEALT_WITH: Final = 10.0  # NATS takes five seconds to find that it cannot retain a message
_OTHER: Final = "doctor-other"
_REMEDY: Final = "use the configuration that broker-config wrote"


class _Client:
    """A client of the broker that publishes, and remembers what it received."""

    def __init__(self, link: PahoLink, *, acknowledges: bool = True) -> None:
        self.link = link
        self.received: set[bytes] = set()
        self._acknowledges = acknowledges
        link.connect()

    def wait(self, enough: Callable[[], bool], seconds: float = ARRIVES) -> None:
        """Receive until there is enough, or the time is over."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not self.link.lost and not enough():
            arrived = self.link.step(0.05)
            if self._acknowledges:
                self.link.acknowledge(arrived)
            self.received.update(message.payload for message in arrived)

    def subscribe(self, topic_filter: str) -> None:
        """Subscribe, and wait for the broker's answer."""
        wanted = self.link.granted + 1
        # NATS stores what it delivers with QoS 1, each subscription's apart: in no common order.
        self.link.subscribe([topic_filter], qos=0)
        self.wait(lambda: self.link.granted == wanted)

    def publish(self, topic: str, *, retain: bool = False, size: int = 0) -> bytes:
        """Publish a random message and wait for the broker's answer; returns the message."""
        message = random_client_id("canary").encode().ljust(size, b".")
        sent = self.link.publish(topic, message, retain=retain)
        self.wait(lambda: sent in self.link.answers(), DEALT_WITH)
        return message

    def clear(self, topic: str) -> None:
        """Take back what was retained."""
        self.link.publish(topic, b"", retain=True)
        self.wait(lambda: bool(self.link.answers()))


class AccessProbe:
    """Connections under different names to one broker."""

    def __init__(self, configured: BrokerDirectory, broker: BrokerUrl) -> None:
        self._configured = configured
        self._broker = broker
        self._canary = partial(canary, namespace=configured.plan.namespace)
        self._marker = self._canary("pub", "try")
        self._mosquitto = configured.plan.kind == "mosquitto"
        self._stack = ExitStack()

    def examine(self, *, collector_free: bool) -> Iterator[Finding]:
        """All trials; with `collector_free` also as the collector, whose session must be idle."""
        with self._stack:
            try:
                self._client(AUDITOR)  # a refusal means something only where others are let in
                self._stack.close()
            except BrokerUnreachable as error:
                yield Finding("access", False, f"could not be tried: {error}")
                return
            yield self._refused("nobody enters without a credential", Credentials())
            wrong = Credentials(PROBE, "not the password")
            yield self._refused("nobody enters with a wrong credential", wrong)
            try:
                yield from self._trials(collector_free)
            except BrokerUnreachable as error:
                yield Finding("access", False, f"the trial broke off: {error}")

    def _trials(self, collector_free: bool) -> Iterator[Finding]:
        up, down = self._canary("up", PROBE, "try"), self._canary("down", PROBE, "response")
        other_up = self._canary("up", _OTHER, "report")
        # A collector would count what the auditor writes there; NATS refuses to read it at once.
        read_up = self._canary("up", _OTHER, "try") if self._mosquitto else other_up
        other_down = self._canary("down", _OTHER, "response")
        pub = self._canary("pub", "other")
        yield self._write(PROBE, "a device reports as itself", up, allowed=True)
        yield self._write(PROBE, "a device does not report as another", other_up)
        yield self._write(PROBE, "a device does not speak for the collector", pub)
        yield self._write(PROBE, "a device does not answer devices", other_down)
        yield self._read("a device reads what is for all", pub, allowed=True)
        yield self._read("a device reads what is for itself", down, allowed=True)
        yield self._read("a device does not read reports", read_up)
        yield self._read("a device does not read what is for another", other_down)
        yield self._take_over()
        yield from self._limits(up)
        yield from self._readers(pub)
        limits = "the collector does not write reports"
        if collector_free:
            yield self._write(COLLECTOR, "the collector speaks to all", pub, allowed=True)
            yield self._write(COLLECTOR, limits, other_up)
        else:
            text = "not tried while the service holds the session; stop it and run doctor again"
            yield Finding(limits, True, text)

    def _readers(self, pub: str) -> Iterator[Finding]:
        """They read and never vote, neither in their own name nor in a device's."""
        if READER_PROBE not in self._configured.users:
            return
        yield self._read("a reader reads results", pub, allowed=True, name=READER_PROBE)
        tried = ((READER_PROBE, "try"), (READER_PROBE, "report"), (PROBE, "report"))
        for name, kind in tried:
            topic = self._canary("up", name, kind)
            found = self._write(READER_PROBE, "a reader does not report", topic)
            if not found.ok:
                break
        yield found
        request = self._canary("up", PROBE, "request")
        yield self._write(READER_PROBE, "a reader does not ask to forget", request)
        yield self._write(READER_PROBE, "a reader does not speak for the collector", pub)

    def _limits(self, up: str) -> Iterator[Finding]:
        """How much of the broker one device can take up."""
        other = self._canary("up", PROBE, "other")
        yield self._write(PROBE, "a device sends reports and requests only", other)
        yield self._large(up)
        if self._mosquitto:
            yield self._one_session()
            yield self._closed()
        else:
            yield self._retained(up)

    def _large(self, topic: str) -> Finding:
        """Sending it costs the device its connection."""
        device = self._client(PROBE)
        device.publish(topic, size=LARGEST_PACKET + 1)
        return self._verdict("a device does not send large messages", device.link.lost is not None)

    def _retained(self, topic: str) -> Finding:
        """Whoever comes later does not find what a device wanted to be kept."""
        device = self._client(PROBE)
        word = device.publish(topic, retain=True)
        auditor = self._client(AUDITOR)
        auditor.subscribe(topic)
        auditor.subscribe(self._marker)
        later = auditor.publish(self._marker)
        auditor.wait(lambda: later in auditor.received)
        kept = word in auditor.received
        if kept:
            device.clear(topic)
        return self._verdict("a device does not store messages", not kept)

    def _one_session(self) -> Finding:
        """Entering again, under whatever name, ends the connection before."""
        first = self._client(PROBE)
        self._client(PROBE)
        first.wait(lambda: False)
        return self._verdict("a device has one session", first.link.lost is not None)

    def _closed(self) -> Finding:
        """mosquitto keeps a message on each topic that a device may write: so they are few."""
        what = "a device reports to known campaigns only"
        if self._configured.plan.campaigns is None:
            return Finding(what, True, "not tried: no campaign is known here")
        return self._write(PROBE, what, self._canary("up", PROBE, "report", campaign=NO_CAMPAIGN))

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
        """A client writes; the auditor receives it, or only what it sent itself afterwards."""
        auditor, writer = self._client(AUDITOR), self._client(name)
        for campaign in (CANARY_CAMPAIGN, NO_CAMPAIGN):
            auditor.subscribe(everything_of(campaign, self._configured.plan.namespace))
        word = writer.publish(topic)
        return self._judge(what, auditor, word, auditor.publish(self._marker), allowed)

    def _read(self, what: str, topic: str, *, allowed: bool = False, name: str = PROBE) -> Finding:
        """The auditor writes; the other receives it, or only what it may read afterwards."""
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
        # NATS serves each subscription by itself: what was sent later may come first.
        ordered = self._mosquitto or not allowed
        listener.wait(lambda: later in listener.received and (ordered or word in listener.received))
        came_through = word in listener.received
        self._stack.close()
        if later not in listener.received:
            return Finding(what, False, "could not be tried: the broker delivers nothing here")
        fact = ("works" if allowed else "possible") if came_through else "refused"
        ok = came_through == allowed
        return Finding(what, ok, fact if ok else f"{fact.upper()}; {_REMEDY}")

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

    def _client(self, name: str, client_id: str | None = None) -> _Client:
        """A connection that is closed after the trial. Messages that wait for the collector are
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
