"""Sealing: the moment a round becomes final.

A round is sealed after its deadline, once the broker has delivered what it had kept of it; a
collector that was away does not shut out reports that were sent in time. Sealing is one
transaction, happens once, and the same counts always give the same bytes (I10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from collector.mqtt import Link
from collector.records import POOLED, Campaign
from collector.rounds.announce import Announcer
from collector.rounds.releasing import pooled_results, release
from collector.store import Store
from collector.timing import Clock, Timing
from protocol_spec import Presence, Result

log = logging.getLogger("allomfree.collector")


def due(store: Store, campaign: Campaign, now: float) -> Iterator[int]:
    """Rounds past their deadline, or begun when the campaign was closed, and not sealed yet."""
    rounds = campaign.manifest.rounds
    last = store.last_sealed(campaign.id)
    for number in range(0 if last is None else last + 1, rounds.count):
        if campaign.closed is None and rounds.deadline(number) > now:
            return
        if campaign.closed is not None and rounds.opens(number) > campaign.closed:
            return
        yield number


def seal(store: Store, campaign: Campaign, number: int, at: int) -> list[Result]:
    """Seal one round; its results and the new pooled ones, or nothing if it was sealed before."""
    with store.sealing(campaign, number, at) as sealing:
        if sealing is None:
            return []
        results = release(store, campaign, number, sealing)
        sealing.write(results, number)
        pooled = list(pooled_results(store, campaign, number, sealing.tallies))
        sealing.write(pooled, POOLED)
        if number == campaign.manifest.rounds.count - 1:
            sealing.drop_unreleased()
    return results + pooled


class Delivery:
    """Whether the broker has delivered what it kept: it was read to its end after connecting, and
    no report of the round came for a while."""

    def __init__(self, clock: Clock, timing: Timing) -> None:
        self._clock = clock
        self._timing = timing
        self._connected_at = self._settled_at = 0.0
        self._backlog = True
        self._last_counted: dict[tuple[int, int], float] = {}

    def connected(self, link: Link) -> None:
        """A new connection: what the broker kept comes now, or after it has settled."""
        timing, self._backlog = self._timing, True
        self._connected_at = self._clock.monotonic()
        settle = timing.quiet_seconds if link.redelivers_at_once else timing.settle_seconds
        self._settled_at = self._connected_at + settle

    def read(self, messages: int) -> None:
        """So many messages were there; none means that the backlog is at its end."""
        self._backlog = self._backlog and messages > 0

    def counted(self, rounds: Iterable[tuple[int, int]]) -> None:
        """Reports of these (campaign, round) were counted now."""
        self._last_counted |= dict.fromkeys(rounds, self._clock.monotonic())

    def is_drained(self, campaign: int, number: int) -> bool:
        """Whether nothing more of a round is to be expected."""
        now = self._clock.monotonic()
        if now - self._connected_at >= self._timing.backlog_longest_seconds:
            self._backlog = False
        quiet_at = self._last_counted.get((campaign, number), 0.0) + self._timing.quiet_seconds
        return not self._backlog and now >= max(self._settled_at, quiet_at)

    def sealed(self, campaign: int, number: int) -> None:
        """The round is final: forget when its last report came."""
        self._last_counted.pop((campaign, number), None)


class Sealer:
    """Seals rounds in order as they become due and are drained."""

    def __init__(
        self,
        store: Store,
        delivery: Delivery,
        announcer: Announcer,
        clock: Clock,
        timing: Timing,
        emit: Callable[[Campaign, Result], None],
        trace: Callable[[str], None],
    ) -> None:
        self._store = store
        self._delivery = delivery
        self._announcer = announcer
        self._clock = clock
        self._timing = timing
        self._emit = emit
        self._trace = trace

    def seal_due(self, link: Link | None, campaigns: Iterable[Campaign]) -> set[int]:
        """Seal what can be sealed; the campaigns of which a due round is still open.

        Without a link nothing is sealed: the broker may have reports that were sent in time.
        """
        end = self._clock.monotonic() + self._timing.sealing_longest_seconds
        waiting = set()
        for campaign in campaigns:
            for number in due(self._store, campaign, self._clock.now()):
                late = self._clock.monotonic() > end
                if link is None or late or not self._delivery.is_drained(campaign.id, number):
                    waiting.add(campaign.id)
                    break  # rounds are sealed in order
                self._seal(link, campaign, number)
        return waiting

    def _seal(self, link: Link, campaign: Campaign, number: int) -> None:
        self._trace("sealing")
        results = seal(self._store, campaign, number, int(self._clock.now()))
        self._delivery.sealed(campaign.id, number)
        self._trace("sealed")
        for result in results:
            self._emit(campaign, result)
        reports = sum(tally.n for tally in self._store.tallies(campaign.id, number).values())
        log.info("%s: round %d sealed with %d reports", campaign.name, number, reports)
        if campaign.closed is None:
            self._announcer.publish_state(link, campaign, Presence.ONLINE)
