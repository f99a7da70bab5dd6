"""Tries what must be refused, because a broker's answers prove nothing: mosquitto grants
subscriptions that its access list forbids, and NATS acknowledges publishes that it drops.

All of it happens below a name that no campaign can have, as a device of our own and as an auditor
who may do everything there. A refusal is proven by what does *not* arrive before something that
was sent later and may arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from collector.brokers.access import AUDITOR, COLLECTOR, PROBE
from collector.brokers.directory import BrokerDirectory
from collector.mqtt.link import PahoLink
from protocol_spec.programs.address import BrokerUrl, Credentials
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.programs.findings import Finding
from protocol_spec.programs.names import unguessable
from protocol_spec.topics import CANARY_CAMPAIGN, canary, everything_of

ARRIVES: Final = 5.0
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

    def publish(self, topic: str) -> bytes:
        """Publish a random message and wait for the broker's answer; returns the message."""
        message = unguessable("canary").encode()
        sent = self.link.publish(topic, message, retain=False)
        self.wait(lambda: sent in self.link.answers())
        return message


class AccessProbe:
    """Connections under different names to one broker."""

    def __init__(self, configured: BrokerDirectory, broker: BrokerUrl) -> None:
        self._configured = configured
        self._broker = broker
        self._canary = partial(canary, namespace=configured.plan.namespace)
        self._marker = self._canary("pub")
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
        up, down = (self._canary(tree, PROBE) for tree in ("up", "down"))
        other_up, other_down = (self._canary(tree, _OTHER) for tree in ("up", "down"))
        pub = self._canary("pub", "other")
        yield self._write(PROBE, "a device reports as itself", up, allowed=True)
        yield self._write(PROBE, "a device does not report as another", other_up)
        yield self._write(PROBE, "a device does not speak for the collector", pub)
        yield self._write(PROBE, "a device does not answer devices", other_down)
        yield self._read("a device reads what is for all", pub, allowed=True)
        yield self._read("a device reads what is for itself", down, allowed=True)
        yield self._read("a device does not read reports", other_up)
        yield self._read("a device does not read what is for another", other_down)
        yield self._take_over()
        limits = "the collector does not write reports"
        if collector_free:
            yield self._write(COLLECTOR, "the collector speaks to all", pub, allowed=True)
            yield self._write(COLLECTOR, limits, up)
        else:
            text = "not tried while the service holds the session; stop it and run doctor again"
            yield Finding(limits, True, text)

    def _refused(self, what: str, credentials: Credentials) -> Finding:
        trusting = replace(credentials, ca_file=self._configured.credentials(AUDITOR).ca_file)
        link = PahoLink(self._broker, trusting, client_id=unguessable("try"), persistent=False)
        try:
            link.connect()
        except BrokerUnreachable:
            return Finding(what, True, "refused")
        link.close()
        return Finding(what, False, f"ACCEPTED; {_REMEDY}")

    def _write(self, name: str, what: str, topic: str, *, allowed: bool = False) -> Finding:
        """A client writes; the auditor receives it, or only what it sent itself afterwards."""
        auditor, writer = self._client(AUDITOR), self._client(name)
        auditor.subscribe(everything_of(CANARY_CAMPAIGN, self._configured.plan.namespace))
        word = writer.publish(topic)
        return self._judge(what, auditor, word, auditor.publish(self._marker), allowed)

    def _read(self, what: str, topic: str, *, allowed: bool = False) -> Finding:
        """The auditor writes; the device receives it, or only what it may read afterwards."""
        auditor, reader = self._client(AUDITOR), self._client(PROBE)
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
        ordered = self._configured.plan.kind == "mosquitto" or not allowed
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
        if self._configured.plan.kind == "nats":
            return Finding(what, True, "its name is random and secret")
        name = unguessable("try")
        victim = self._client(AUDITOR, name)
        self._client(PROBE, name)
        victim.publish(self._marker)
        kept = victim.link.lost is None
        self._stack.close()
        return Finding(what, kept, "refused" if kept else f"POSSIBLE; {_REMEDY}")

    def _client(self, name: str, client_id: str | None = None) -> _Client:
        """A connection that is closed after the trial. Messages that wait for the collector are
        not acknowledged here, and a clean session in its name would drop them."""
        collector = name == COLLECTOR
        link = PahoLink(
            self._broker,
            self._configured.credentials(name),
            client_id=client_id or unguessable("try"),
            persistent=collector and self._configured.plan.kind == "mosquitto",
        )
        self._stack.callback(link.close)
        return _Client(link, acknowledges=not collector)
