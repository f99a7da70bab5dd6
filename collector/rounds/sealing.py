"""Sealing: the moment a round becomes final.

A round is sealed after its deadline, once the broker has been shown to hold nothing more of it; a
collector that was away or slow does not shut out reports that were sent in time. The manifest says
how long that may take at most (`rounds.drain`). Sealing is one transaction, happens once, and the
same counts always give the same bytes (I10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from collector.clock_watch import ClockWatch
from collector.health import Waiting
from collector.mqtt import Link
from collector.records import POOLED, Campaign
from collector.rounds.announce import Announcer
from collector.rounds.draining import Round
from collector.rounds.releasing import pooled_results, release
from collector.store import Store
from collector.timing import Clock, Timing
from protocol_spec import Presence, Result

log = logging.getLogger("allomfree.collector")

UNPROVEN: Final = (
    "%s: round %d sealed without proof that the broker holds no more of it: no marker came back in "
    "%d s. What was counted stands; reports that still come are late. Look whether the broker is "
    "overloaded, or refuses the collector's markers (allomfree-collector doctor)"
)


class Proof(Protocol):
    """Whether the broker holds more of a round."""

    def expect(self, due: Round) -> None:
        """A round is due: it is drained when all that the broker took until now is committed."""

    def is_drained(self, due: Round) -> bool:
        """Whether all that the broker took before the round was due is committed."""

    def rest(self, due: Round, longest: float) -> float:
        """Seconds until the round is not waited for any more."""

    def done(self, due: Round) -> None:
        """The round is sealed."""

    @property
    def why(self) -> str:
        """What is waited for."""


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


class Sealer:
    """Seals rounds in order as they become due and are drained."""

    def __init__(
        self,
        store: Store,
        drain: Proof,
        watch: ClockWatch,
        announcer: Announcer,
        clock: Clock,
        timing: Timing,
        emit: Callable[[Campaign, Result], None],
        trace: Callable[[str], None],
    ) -> None:
        self._store = store
        self._drain = drain
        self._watch = watch
        self._announcer = announcer
        self._clock = clock
        self._timing = timing
        self._emit = emit
        self._trace = trace

    def seal_due(self, link: Link | None, campaigns: Iterable[Campaign]) -> dict[int, Waiting]:
        """Seal what can be sealed; the campaigns of which a due round is still open.

        Without a link nothing is sealed: the broker may have reports that were sent in time.
        """
        end = self._clock.monotonic() + self._timing.sealing_longest_seconds
        waiting = {}
        for campaign in campaigns:
            numbers = list(due(self._store, campaign, self._clock.now()))
            for number in numbers:
                self._drain.expect((campaign.id, number))
            for number in numbers:
                late = self._clock.monotonic() > end
                if link is None or late or not self._may_seal(campaign, number):
                    waiting[campaign.id] = self._waiting(link, campaign, number)
                    break  # rounds are sealed in order
                self._seal(link, campaign, number)
        return waiting

    def _may_seal(self, campaign: Campaign, number: int) -> bool:
        """Drained, by a clock that can be trusted; or waited for as long as the manifest says."""
        this, rounds = (campaign.id, number), campaign.manifest.rounds
        if self._drain.rest(this, rounds.drain) == 0.0:
            return True
        doubted = campaign.closed is None and self._watch.doubts(rounds.deadline(number))
        return self._drain.is_drained(this) and not doubted

    def _waiting(self, link: Link | None, campaign: Campaign, number: int) -> Waiting:
        this, rounds = (campaign.id, number), campaign.manifest.rounds
        rest = self._drain.rest(this, rounds.drain)
        until = None if link is None else self._clock.now() + rest
        why = self._drain.why
        if self._drain.is_drained(this):
            why = "the clock was set ahead, and nothing confirms it"
        return {"round": number, "until": until, "why": why}

    def _seal(self, link: Link, campaign: Campaign, number: int) -> None:
        self._trace("sealing")
        results = seal(self._store, campaign, number, int(self._clock.now()))
        if not self._drain.is_drained((campaign.id, number)):
            log.warning(UNPROVEN, campaign.name, number, campaign.manifest.rounds.drain)
        self._drain.done((campaign.id, number))
        self._trace("sealed")
        for result in results:
            self._emit(campaign, result)
        reports = sum(tally.n for tally in self._store.tallies(campaign.id, number).values())
        log.info("%s: round %d sealed with %d reports", campaign.name, number, reports)
        if campaign.closed is None:
            self._announcer.publish_state(link, campaign, Presence.ONLINE)
