"""Does the broker still take messages? A connection that lives does not say so.

NATS whose disk was full keeps its connections and answers no publish any more, also when there is
space again, until it is started anew. So the collector sends itself a word now and then, and a
broker that answers nothing for a while is said to be stuck; the embedded one is restarted.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Final

from collector.mqtt import Link
from collector.timing import Clock, Timing
from protocol_spec.topics import marker

log = logging.getLogger("allomfree.collector")

STUCK: Final = (
    "the broker is connected but has not answered for {:.0f} s; reports wait on the devices. Is "
    "its disk full? If it was, and the broker is not the embedded one, restart it"
)


class BrokerWatch:
    """Asks for an answer, and counts the seconds of connected time without any."""

    def __init__(
        self, namespace: str, clock: Clock, timing: Timing, restart: Callable[[], None]
    ) -> None:
        self._topic = marker(namespace)
        self._clock = clock
        self._timing = timing
        self._restart = restart
        self._patience = timing.stuck_seconds
        self._asked = False
        self._question: int | None = None
        self._silent = 0.0
        self._last = clock.monotonic()
        self._next = self._last + timing.probe_every_seconds

    def connected(self) -> None:
        """A new connection: what was not answered on the last one is asked again."""
        self._question = None
        self._last = self._clock.monotonic()
        if self._asked:
            self._next = self._last

    def tick(self, link: Link) -> str:
        """Ask if it is time to; what is wrong, or nothing."""
        now = self._clock.monotonic()
        passed, self._last = min(now - self._last, self._timing.longest_tick_seconds), now
        if self._question is not None and not link.is_unanswered(self._question):
            self._asked, self._question, self._silent = False, None, 0.0
            self._patience = self._timing.stuck_seconds
        elif self._asked:
            self._silent += passed
        if self._question is None and now >= self._next and link.free:
            self._ask(link, now)
        if self._silent < self._timing.stuck_seconds:
            return ""
        if self._silent >= self._patience:
            self._give_up()
        return STUCK.format(self._silent)

    def _ask(self, link: Link, now: float) -> None:
        self._next = now + self._timing.probe_every_seconds
        self._asked = True
        self._question = link.publish(self._topic, secrets.token_bytes(16), retain=False)

    def _give_up(self) -> None:
        """Restart it, if it is ours, and wait longer before the next time."""
        log.error("%s", STUCK.format(self._silent))
        self._patience = min(
            self._silent + 2 * self._patience, self._silent + self._timing.stuck_longest_seconds
        )
        self._restart()
