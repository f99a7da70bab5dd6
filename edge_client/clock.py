"""Two clocks, and whether the wall clock can be right.

The wall clock decides which round is open; the boot-time clock, which nobody can set, keeps a wall
clock that is pushed forward from buying more draws than the period allows.

A device whose clock is ahead when it draws skips rounds, and is silent until the time comes that
it drew for: rounds never go back. So a clock in doubt is reported to the owner, and may put a draw
off. Nothing in here can cause one (I16): a hint that comes from a broker, which may lie, only
delays, and only where the kernel does not vouch for the clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar, Final, Protocol

from edge_client.language import message, say
from edge_client.records import Membership
from protocol_spec import Manifest, Presence, State
from protocol_spec.programs.system import synchronised_by_child, this_boot

ASK_AGAIN_SECONDS: Final = 60.0
OLDEST: Final = 1_735_689_600  # 2025-01-01: a clock before this program was written is wrong
UNSYNCHRONISED: Final = message(
    "the kernel reports that the clock is not synchronised: if it is ahead, the rounds in between "
    "are lost. Set up a time server (NTP)"
)


class Clock(Protocol):
    """What the agent needs to know about time."""

    def wall(self) -> float:
        """Seconds of Unix time."""

    def boottime(self) -> float:
        """Seconds since boot, sleep included; never set, never backwards."""

    def boot(self) -> str:
        """Names the boot that `boottime` counts from."""

    def synchronised(self) -> bool | None:
        """Whether the kernel considers the wall clock synchronised; None if that is unknown."""


class SystemClock:
    """The machine's own clocks."""

    _asked: ClassVar[tuple[float, bool | None] | None] = None  # there is one wall clock for all

    def wall(self) -> float:
        return time.time()

    def boottime(self) -> float:
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def boot(self) -> str:
        return this_boot()

    def synchronised(self) -> bool | None:
        """What the kernel says, asked at most once a minute."""
        now, before = self.boottime(), SystemClock._asked
        if before is not None and now - before[0] <= ASK_AGAIN_SECONDS:
            return before[1]
        SystemClock._asked = now, synchronised_by_child()
        return SystemClock._asked[1]


def is_too_early(manifest: Manifest, now: float) -> bool:
    """Whether a clock that says `now` must be wrong.

    A manifest without a time of creation says that it was made at its first round; one that was
    opened before that is no evidence against a clock.
    """
    if manifest.created < manifest.rounds.first:
        return now < manifest.created
    return now < min(manifest.created, OLDEST)


def first_round_to_come(manifest: Manifest, clock: Clock) -> str:
    """When the first round begins; empty if it has begun, or if the clock cannot be right."""
    now, first = clock.wall(), manifest.rounds.first
    return "" if now >= first or is_too_early(manifest, now) else _instant(first)


def doubt(manifest: Manifest, clock: Clock) -> str:
    """Why the clock must be wrong, or cannot be relied on; empty if nothing speaks against it."""
    now, name = clock.wall(), manifest.campaign
    if is_too_early(manifest, now):
        early = message("{now} is before {name} was made; nothing is drawn. Set the clock")
        return say(early, now=_instant(now), name=name)
    if clock.synchronised() is not False:
        return ""
    if _is_over(manifest, now):
        late, why = message("{now} is after the last round of {name}, and {why}"), UNSYNCHRONISED
        return say(late, now=_instant(now), name=name, why=say(why))
    return say(UNSYNCHRONISED)


def is_impossible(manifest: Manifest, clock: Clock) -> bool:
    """Whether a clock that is doubted says a time outside of the campaign's rounds."""
    now = clock.wall()
    return bool(doubt(manifest, clock)) and (is_too_early(manifest, now) or _is_over(manifest, now))


def first_doubt(manifests: Sequence[Manifest], clock: Clock) -> str:
    """The worst doubt about the clock of all these campaigns."""
    doubts = [(is_impossible(m, clock), why) for m in manifests if (why := doubt(m, clock))]
    return max(doubts, key=lambda each: each[0], default=(False, ""))[1]


def is_ahead_of(state: State | None, manifest: Manifest, clock: Clock) -> bool:
    """Whether the collector, by its own word, is in an earlier round than this clock says.

    A round is sealed some time after its deadline. One that an online collector has not sealed long
    after that, by this clock, has not come to its end by the collector's.
    """
    if state is None or state.presence is not Presence.ONLINE:
        return False
    rounds = manifest.rounds
    unsealed = 0 if state.last_sealed is None else state.last_sealed + 1
    if unsealed >= rounds.count:
        return False
    return clock.wall() > rounds.deadline(unsealed) + rounds.drain + 2 * rounds.period


def is_unsure(membership: Membership, number: int, clock: Clock) -> bool:
    """Whether a draw would skip rounds by a clock that the kernel does not vouch for.

    A device that reports round by round is never put off, whatever a broker says.
    """
    return number > membership.last_round + 1 and clock.synchronised() is False


def _is_over(manifest: Manifest, now: float) -> bool:
    return now >= manifest.rounds.closes(manifest.rounds.count - 1)


def _instant(now: float) -> str:
    try:
        return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return say("the clock")
