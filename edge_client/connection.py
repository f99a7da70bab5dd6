"""One broker: connected, or waiting until it is tried again.

A report that was sent is sent again, the same bytes, after every reconnect and with growing pauses;
at most a window of them is on the way at once (R16).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from edge_client.campaign_queue import CampaignQueue, Outgoing
from edge_client.clock import Clock
from edge_client.errors import BrokerUnreachable
from edge_client.mqtt.connector import Connector
from edge_client.mqtt.link import Acknowledged, Arrived, Connected, Link, Lost
from edge_client.timing import Timing
from edge_client.trace import Trace
from protocol_spec.programs.address import parse_broker
from protocol_spec.programs.mqtt import MQTT_5

log = logging.getLogger("allomfree.edge")


class Connection:
    """A broker's link while there is one, and the pause before the next while there is none."""

    def __init__(
        self,
        broker: str,
        connector: Connector,
        clock: Clock,
        *,
        timing: Timing,
        jitter: Callable[[float], float],
        trace: Trace,
    ) -> None:
        self.trouble = ""
        self._broker = broker
        self._connector = connector
        self._clock = clock
        self._timing = timing
        self._jitter = jitter
        self._trace = trace
        self._link: Link | None = None
        self._version = MQTT_5
        self._failures = 0
        self._hasty = 0  # connections in a row that ended soon and carried nothing
        self._connected_at = 0.0
        self._retry_at = 0.0
        self._in_flight: dict[int, Outgoing] = {}

    @property
    def has_link(self) -> bool:
        """Whether there is anything to wait for: a broker that was reached."""
        return self._link is not None

    @property
    def is_ready(self) -> bool:
        """Whether the broker has accepted us."""
        return self._link is not None and self._link.ready

    def open_if_due(self) -> None:
        """Reach the broker, unless it is connected or its pause is not over."""
        if self._link is not None or self._clock.steady() < self._retry_at:
            return
        link = self._connector.link(parse_broker(self._broker), self._version)
        try:
            link.start()
        except BrokerUnreachable as error:
            self._back_off(str(error))
        else:
            self._link = link

    def close(self) -> None:
        """Disconnect; what is queued stays queued."""
        if self._link:
            self._link.close()
            self._link = None

    def subscribe(self, queues: Sequence[CampaignQueue]) -> None:
        """Ask for all that concerns these campaigns."""
        if self._link:
            for queue in queues:
                self._link.subscribe(queue.topics)

    def send(self, queues: Sequence[CampaignQueue]) -> None:
        """Send what is due, as far as the window allows.

        A receipt may have passed us by: a page reaches us with QoS 0, and a broker may take a
        subscription between handing a page on and keeping it. It is not published again unless it
        changes, so whoever sends again also asks for what is retained again.
        """
        for queue in queues:
            if self._send_due(queue):
                self.subscribe([queue])

    def _send_due(self, queue: CampaignQueue) -> bool:
        """Returns whether anything was sent again."""
        link, now, again = self._link, self._clock.steady(), False
        for report in queue.reports.values():
            if link is None or not link.ready or not link.free:
                break
            if report.next_try <= now:
                again = again or report.is_awaited
                self._send(link, report, now)
        return again

    def listen(self, queues: Sequence[CampaignQueue], wait: float) -> list[Arrived]:
        """Let the network run, and return the messages that arrived."""
        link, arrived = self._link, list[Arrived]()
        for event in link.step(wait) if link else ():
            if isinstance(event, Arrived):
                arrived.append(event)
            elif isinstance(event, Connected) and link:
                self._connected(link, queues)
            elif isinstance(event, Acknowledged):
                self._acknowledged(event)
            elif isinstance(event, Lost):
                self._back_off(event.reason)
        return arrived

    def _send(self, link: Link, report: Outgoing, now: float) -> None:
        self._trace("sending")
        number = link.publish(report.topic, report.row.payload)
        self._trace("sent")
        self._in_flight[number] = report
        pause = self._timing.resend * 2.0**report.attempts
        report.attempts += 1
        report.is_awaited = True
        report.next_try = now + self._jitter(min(self._timing.resend_longest, pause))

    def _connected(self, link: Link, queues: Sequence[CampaignQueue]) -> None:
        self._version = link.version
        self._failures, self.trouble = 0, ""
        self._connected_at = self._clock.steady()
        self._in_flight.clear()
        for queue in queues:
            queue.send_all_again()
        self.subscribe(queues)
        log.info("connected to %s", self._broker)

    def _acknowledged(self, event: Acknowledged) -> None:
        self._trace("acknowledged")
        self._hasty = 0
        if self._in_flight.pop(event.mid, None) is None:
            return
        self.trouble = ""
        if event.refusal:
            self.trouble = f"the broker refused a report ({event.refusal})"
            log.warning("%s; it stays queued and is tried again", self.trouble)

    def _back_off(self, reason: str) -> None:
        reason += self._connector.note(parse_broker(self._broker))
        if self.trouble != reason:
            log.warning("%s; reports stay queued and are sent later", reason)
        if self.is_ready:
            self._note_end(self._clock.steady() - self._connected_at)
        self._link, self.trouble = None, reason
        pause = min(self._timing.reconnect_longest, self._timing.reconnect * 2.0**self._failures)
        self._failures += 1
        self._retry_at = self._clock.steady() + self._jitter(pause)

    def _note_end(self, lasted: float) -> None:
        """A broker that accepts and breaks every connection is asked less and less often."""
        self._failures = self._hasty
        self._hasty = 0 if lasted >= self._timing.steady else self._hasty + 1
