"""Trying what must be refused, because a broker's word is not to be trusted: mosquitto grants
subscriptions that its access list forbids, and NATS acknowledges publishes that it drops.

All of it happens where no campaign can be, under a device of our own and an auditor who may do
everything there and elsewhere at most what every device may read. A refusal is proven by what does
*not* arrive before something that was sent later and may arrive.
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
from protocol_spec.programs.mqtt import unguessable
from protocol_spec.topics import CANARY_CAMPAIGN, canary, everything_of

ARRIVES: Final = 5.0
_OTHER: Final = "doctor-other"
_REMEDY: Final = "use the configuration that broker-config wrote"


class _Party:
    """Somebody at the broker who speaks and remembers what was heard."""

    def __init__(self, link: PahoLink, *, acknowledges: bool = True) -> None:
        self.link = link
        self.heard: set[bytes] = set()
        self._acknowledges = acknowledges
        link.connect()

    def wait(self, enough: Callable[[], bool], seconds: float = ARRIVES) -> None:
        """Listen until it is enough."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not self.link.lost and not enough():
            arrived = self.link.step(0.05)
            if self._acknowledges:
                self.link.acknowledge(arrived)
            self.heard.update(message.payload for message in arrived)

    def listen(self, topic_filter: str) -> None:
        """Subscribe, and wait for the broker's word."""
        wanted = self.link.granted + 1
        # NATS stores what it delivers with QoS 1, each subscription's apart: in no common order.
        self.link.subscribe([topic_filter], qos=0)
        self.wait(lambda: self.link.granted == wanted)

    def say(self, topic: str) -> bytes:
        """Publish a word nobody else says; returns once the broker has dealt with it."""
        word = unguessable("canary").encode()
        sent = self.link.publish(topic, word, retain=False)
        self.wait(lambda: sent in self.link.answers())
        return word


class AccessProbe:
    """Connections under different names to one broker."""

    def __init__(self, configured: BrokerDirectory, broker: BrokerUrl) -> None:
        self._configured = configured
        self._broker = broker
        self._canary = partial(canary, namespace=configured.plan.namespace)
        self._marker = self._canary("pub")
        self._stack = ExitStack()

    def examine(self, *, collector_free: bool) -> Iterator[Finding]:
        """All trials. With `collector_free` also as the collector, whose session must be idle."""
        with self._stack:
            try:
                self._party(AUDITOR)  # a refusal means something only where others are let in
                self._stack.close()
            except BrokerUnreachable as error:
                yield Finding("access", False, f"could not be tried: {error}")
                return
            yield self._shut_out("nobody enters without a credential", Credentials())
            wrong = Credentials(PROBE, "not the password")
            yield self._shut_out("nobody enters with a wrong credential", wrong)
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

    def _shut_out(self, what: str, credentials: Credentials) -> Finding:
        trusting = replace(credentials, ca_file=self._configured.credentials(AUDITOR).ca_file)
        link = PahoLink(self._broker, trusting, client_id=unguessable("try"), persistent=False)
        try:
            link.connect()
        except BrokerUnreachable:
            return Finding(what, True, "refused")
        link.close()
        return Finding(what, False, f"LET IN; {_REMEDY}")

    def _write(self, name: str, what: str, topic: str, *, allowed: bool = False) -> Finding:
        """Somebody writes; the auditor hears it, or only what it said itself afterwards."""
        auditor, writer = self._party(AUDITOR), self._party(name)
        auditor.listen(everything_of(CANARY_CAMPAIGN, self._configured.plan.namespace))
        word = writer.say(topic)
        return self._judge(what, auditor, word, auditor.say(self._marker), allowed)

    def _read(self, what: str, topic: str, *, allowed: bool = False) -> Finding:
        """The auditor writes; the device hears it, or only what it may hear afterwards."""
        auditor, reader = self._party(AUDITOR), self._party(PROBE)
        reader.listen(topic)
        if reader.link.denied:
            self._stack.close()
            return Finding(what, not allowed, "refused" if not allowed else f"REFUSED; {_REMEDY}")
        reader.listen(self._marker)
        word = auditor.say(topic)
        return self._judge(what, reader, word, auditor.say(self._marker), allowed)

    def _judge(
        self, what: str, listener: _Party, word: bytes, later: bytes, allowed: bool
    ) -> Finding:
        # NATS serves each subscription by itself: what was said later may come first.
        listener.wait(lambda: later in listener.heard and (word in listener.heard or not allowed))
        came_through = word in listener.heard
        self._stack.close()
        if later not in listener.heard:
            return Finding(what, False, "could not be tried: the broker delivers nothing here")
        fact = ("works" if allowed else "possible") if came_through else "refused"
        ok = came_through == allowed
        return Finding(what, ok, fact if ok else f"{fact.upper()}; {_REMEDY}")

    def _take_over(self) -> Finding:
        """Another's session cannot be had by its name; where names are not tied to users, because
        nobody can guess it."""
        what = "nobody takes over another's session"
        if self._configured.plan.kind == "nats":
            return Finding(what, True, "its name is random and told to nobody")
        name = unguessable("try")
        victim = self._party(AUDITOR, name)
        self._party(PROBE, name)
        victim.say(self._marker)
        kept = victim.link.lost is None
        self._stack.close()
        return Finding(what, kept, "refused" if kept else f"POSSIBLE; {_REMEDY}")

    def _party(self, name: str, client_id: str | None = None) -> _Party:
        """A connection that is closed with the trial. What waits for the collector is not ours to
        acknowledge, and a clean session in its name would drop it."""
        collector = name == COLLECTOR
        link = PahoLink(
            self._broker,
            self._configured.credentials(name),
            client_id=client_id or unguessable("try"),
            persistent=collector and self._configured.plan.kind == "mosquitto",
        )
        self._stack.callback(link.close)
        return _Party(link, acknowledges=not collector)
