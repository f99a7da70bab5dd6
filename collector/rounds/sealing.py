"""Draining: is there anything left at the broker that was sent in time?

Silence proves nothing: a network, a disk or a long queue may stand still for longer than anyone
would wait. So the collector writes to itself: a marker with a number that nobody can guess goes
through the very queue that brings reports, and when it is back and the batch it came in is
committed, everything the broker took before it has been counted.

Brokers differ in one thing. mosquitto keeps one queue per session, and what a connection left
unacknowledged comes first on the next. NATS delivers such messages again only after its `ack_wait`,
behind newer ones, and drops what exceeds a session's share in favour of such a redelivery. There a
marker is proof only if it was sent after all redelivery: `Timing.settle_seconds` after the last
moment that may have caused one, and not while the broker is handing over a backlog, which makes it
put redelivery off.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from collector.health import Waiting
from collector.links import Link, Message
from collector.records import NO_COUNTS, POOLED, Campaign, RoundSum, Tally
from collector.rounds.publishing import Announcer
from collector.rounds.results import Evidence, pooled_result, round_results, window_result
from collector.store import Sealing, Store
from collector.timing import Clock, ClockWatch, Timing
from protocol_spec import Presence, Result
from protocol_spec.topics import from_all_devices, marker

Round = tuple[int, int]  # campaign, number

NONCE_BYTES: Final = 16
BACKLOG: Final = 500  # so many messages at once are no live traffic
_OUTSTANDING: Final = 64


@dataclass(frozen=True, slots=True)
class _Expected:
    """A round past its deadline: how many markers had been sent, and the time, when it was seen."""

    markers: int
    at: float


class Drain:
    """Sends markers while a round waits, and knows what their return proves.

    Its time is the time spent reading: it stands still without a connection, while the storage
    refuses, and when the whole process does, so that none of these can use a bound up.
    """

    def __init__(
        self,
        namespace: str,
        clock: Clock,
        timing: Timing,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        self._topic = marker(namespace)
        self._subscriptions = len(from_all_devices(namespace))
        self._clock = clock
        self._timing = timing
        self._nonce = nonce
        self._expected: dict[Round, _Expected] = {}
        self._sent: dict[bytes, tuple[int, float]] = {}  # nonce: which marker, and when
        self._count = self._proven = 0
        self._now = self._last_tick = 0.0
        self._connected_at = self._settled_at = self._sent_at = 0.0
        self._later = False  # whether this broker redelivers later rather than at once

    # --- what happens --------------------------------------------------------------------------

    def connected(self, link: Link) -> None:
        """A new connection: markers of the last one prove nothing here."""
        self._sent.clear()
        self._connected_at, self._last_tick = self._now, self._clock.monotonic()
        self._later = link.redelivers_later
        self._settled_at = self._now
        if self._later and link.session_present:
            self._doubt()

    def read(self, messages: Sequence[Message]) -> None:
        """These came at once."""
        if len(messages) < BACKLOG:
            return
        if self._now < self._settled_at:  # redelivery is put off meanwhile
            self._settled_at = max(self._settled_at, self._now + self._timing.calm_seconds)
        if self._later and any((m.topic or "").endswith("/request") for m in messages):
            self._doubt()

    def committed(self, messages: Iterable[Message]) -> None:
        """These are durable: a marker among them proves what it proves."""
        for message in messages:
            if message.topic == self._topic and not message.retained:
                number, at = self._sent.pop(message.payload, (0, 0.0))
                if at >= self._settled_at:
                    self._proven = max(self._proven, number)

    def tick(self, *, reading: bool) -> None:
        """Time passes; it counts while messages are read."""
        now = self._clock.monotonic()
        if reading:
            self._now += min(max(0.0, now - self._last_tick), self._timing.longest_tick_seconds)
        self._last_tick = now

    def send(self, link: Link) -> None:
        """Send a marker if a round waits for one, and again if it may have been lost."""
        waiting = [e.markers for e in self._expected.values() if e.markers >= self._proven]
        ready = link.granted >= self._subscriptions and self._now >= self._settled_at
        if not waiting or not ready or not link.free:
            return
        on_its_way = max((n for n, at in self._sent.values() if at >= self._settled_at), default=0)
        overdue = self._now >= self._sent_at + self._timing.marker_again_seconds
        if overdue or on_its_way <= max(waiting):
            self._send(link)

    # --- what is known -------------------------------------------------------------------------

    def expect(self, due: Round) -> None:
        """A round is due: it is drained when a marker sent from now on is back."""
        if due not in self._expected:
            self._expected[due] = _Expected(self._count, self._now)

    def is_drained(self, due: Round) -> bool:
        """Whether all that the broker took before the round was due is committed."""
        return self._proven > self._expected[due].markers

    def rest(self, due: Round, longest: float) -> float:
        """Seconds until the round is not waited for any more, counted from the later of: it was
        due, and the connection was made. Nothing that a device sends changes it."""
        since = max(self._expected[due].at, self._connected_at)
        return max(0.0, since + longest - self._now)

    def done(self, due: Round) -> None:
        """The round is sealed."""
        self._expected.pop(due, None)

    @property
    def why(self) -> str:
        """What is waited for."""
        return "the broker may hold reports that were sent in time"

    def _doubt(self) -> None:
        """Something may be delivered again, and later than what comes now."""
        self._settled_at = self._now + self._timing.settle_seconds

    def _send(self, link: Link) -> None:
        while len(self._sent) >= _OUTSTANDING:
            del self._sent[next(iter(self._sent))]
        self._count += 1
        self._sent_at = self._now
        nonce = self._nonce()
        self._sent[nonce] = self._count, self._now
        link.publish(self._topic, nonce, retain=False)


# --- What of a sealed round is released: no difference of two results is about too few devices.


def release(store: Store, campaign: Campaign, number: int, sealing: Sealing) -> list[Result]:
    """Decide on every attribute, once and for ever; the results of the round."""
    results = round_results(campaign, number, sealing.tallies, sealing.outcomes)
    heard = {index for index, result in enumerate(results) if result.n}
    reporting = campaign.manifest.reporting
    released = {i for i in heard if reporting != "once" and not results[i].withheld}
    others = heard - released
    sealing.end_reports(released, set() if reporting == "nested" else others)
    for index in others:
        if reporting == "nested":
            sealing.erase(index)
            continue
        sealing.set_aside(index)
        if reporting != "once" and _are_enough(store, campaign, index):
            sealing.release(index)
    if reporting == "once":
        return [_window(store, campaign, number, i, sealing) for i in range(len(results))]
    return results


def _are_enough(store: Store, campaign: Campaign, index: int) -> bool:
    """Whether what was set aside can be released."""
    rounds = store.unreleased(campaign.id, index)
    if rounds is None:
        return False
    who = store.participation(campaign.id, index, released=False)
    evidence = Evidence(campaign.manifest.mechanisms[index], rounds.tally, who)
    return evidence.n_eff >= campaign.manifest.min_reports


def _window(store: Store, campaign: Campaign, number: int, index: int, sealing: Sealing) -> Result:
    """All rounds since the last window, released if they are enough."""
    known = store.unreleased(campaign.id, index) or RoundSum(number, number, 0, _NOTHING)
    rounds = RoundSum(known.first, number, known.rounds, known.tally)
    who = store.participation(campaign.id, index, released=False)
    result = window_result(campaign, index, rounds, who, sealing.outcomes)
    if not result.withheld:
        sealing.release(index)
    return result


def pooled_results(
    store: Store, campaign: Campaign, number: int, tallies: Mapping[int, Tally]
) -> Iterator[Result]:
    """All that was released of each attribute; before that, how much there is so far."""
    for index in range(len(campaign.manifest.attributes)):
        if campaign.manifest.reporting == "nested":
            yield from _latest(store, campaign, number, index, tallies.get(index))
            continue
        released = store.released(campaign.id, index)
        rounds = released or store.unreleased(campaign.id, index)
        if rounds is not None:
            yield pooled_result(
                campaign,
                index,
                rounds.rounds,
                rounds.tally,
                store.participation(campaign.id, index, released=released is not None),
                store.outcomes(campaign.id),
                first=rounds.first,
                last=rounds.last,
            )


def _latest(
    store: Store, campaign: Campaign, number: int, index: int, tally: Tally | None
) -> Iterator[Result]:
    """The latest report of a device says all that the ones before said: a round stands for all."""
    if tally is None or tally.n == 0:
        return
    who, outcomes = ([1], [tally.n]), store.outcomes(campaign.id)
    made = pooled_result(campaign, index, 1, tally, who, outcomes, first=number)
    if not made.withheld or store.released(campaign.id, index) is None:
        yield made


_NOTHING = Tally(0, NO_COUNTS)


# --- Sealing: the moment a round becomes final.


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


# --- What is deleted in the end: counts of too few devices, and which devices took part.


def end_retention(store: Store, campaigns: Iterable[Campaign], now: float) -> None:
    """Forget the devices of campaigns whose retention is over.

    Not while a round is due but not sealed: its pooled result still needs to know how many devices
    took part in how many rounds.
    """
    for campaign in campaigns:
        over = now >= campaign.manifest.expires + campaign.manifest.retention
        if over and store.drop_devices(campaign.id):
            log.info("%s: retention is over, devices forgotten", campaign.name)


def drop_unreleased(store: Store, campaigns: Iterable[Campaign], now: float) -> None:
    """Delete what was not released of campaigns that are over: no round can be added to it."""
    for campaign in campaigns:
        over = campaign.closed is not None or now >= campaign.manifest.rounds.end
        if over and store.drop_unreleased(campaign.id):
            log.info("%s: over; counts of too few devices deleted", campaign.name)
