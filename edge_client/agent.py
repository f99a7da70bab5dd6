"""Deciding and drawing: the part of the agent that makes every random choice.

Claim: whatever arrives from the network, and however the clock jumps, a device draws at most one
report per round and per period of real time, and at most one memo per value; where it answers in
some rounds only, these are drawn once. Nothing in here knows about MQTT; nothing outside of here
draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Self

from edge_client.clock import Clock, SystemClock, is_too_early
from edge_client.errors import CampaignProblem, SettingsError
from edge_client.policy import Policy, affords_memo, check_draw, check_joining
from edge_client.records import Draw, Invitation, Membership, Memo, Queued, Trace, no_trace
from edge_client.store import Store
from edge_client.store.highwater import Participation
from protocol_spec import (
    Attribute,
    Entropy,
    Manifest,
    Mechanism,
    Randomiser,
    is_trial,
    made_up_value,
    make_report,
    random_below,
)
from protocol_spec.mechanisms import draw_rounds
from protocol_spec.programs.output import shown
from protocol_spec.topics import is_device

ReadValue = Callable[[str], object]
MakeRandomiser = Callable[[Mechanism, str, Entropy], Randomiser]

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


class DeviceState:
    """What is remembered on this device and what its owner allows, for inspection: it knows no
    broker and draws nothing."""

    def __init__(
        self,
        state_dir: str | Path,
        *,
        policy: Policy | None = None,
        exclusive: bool = False,
        clock: Clock | None = None,
        trace: Trace = no_trace,
    ) -> None:
        self.clock = clock or SystemClock()
        self.policy = policy or Policy()
        self.store = Store(Path(state_dir), exclusive=exclusive, trace=trace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; a later client continues where this one stopped."""
        self.store.close()

    def memberships(self) -> list[Membership]:
        return self.store.memberships()

    def find(self, name: str | None = None) -> Membership:
        """One campaign by its name or the beginning of it; the only one when not named."""
        known = self.memberships()
        if not known:
            raise CampaignProblem("this device has joined no campaign; nothing was sent or spent")
        found = [m for m in known if name is None or m.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(m.name for m in known)
        what = "is not a joined campaign" if not found else "could be several campaigns"
        raise CampaignProblem(f"{shown(name or 'no name')} {what}; joined are: {shown(names, 600)}")


# --- whether a draw is allowed -------------------------------------------------------------------


class Wait(StrEnum):
    """Why nothing is drawn now, in words for the owner."""

    PAUSED = "paused by you"
    LEFT = "you have left this campaign"
    CLOCK_EARLY = "the clock is before the campaign's creation; waiting for the right time"
    NOT_BEGUN = "the first round has not begun"
    OVER = "all rounds are over"
    CLOCK_DOUBTED = "all rounds are over, by a clock that is not synchronised"
    CLOCK_ASKED = "the clock is not synchronised; waiting briefly for the collector's state"
    CLOCK_DISPUTED = "by the collector's clock the round has not begun; waiting for the right time"
    DRAWN = "this round's report is drawn; waiting for the next round"
    CLOCK_BEHIND = "the clock is behind the last round drawn; waiting until it has caught up"
    CLOCK_AHEAD = "the clock ran ahead; waiting until a full period has really passed"
    NOT_DRAWN = "this device drew other rounds to answer; waiting for the next of them"
    ALL_PASSED = "the rounds that this device drew to answer have passed"


@dataclass(frozen=True, slots=True)
class Due:
    """A round that may be drawn now, and when it opened by the boot-time clock."""

    round: int
    opened: float


def due(membership: Membership, clock: Clock) -> Due | Wait:  # noqa: PLR0911 - one list of reasons
    """Whether a draw is allowed at this moment. Pure: asks the clocks, changes nothing."""
    now, boottime, rounds = clock.wall(), clock.boottime(), membership.manifest.rounds
    if membership.status != "joined":
        return Wait.PAUSED if membership.status == "paused" else Wait.LEFT
    if is_too_early(membership.manifest, now):
        return Wait.CLOCK_EARLY
    number = rounds.round_at(now)
    if number is None:
        if now < rounds.first:
            return Wait.NOT_BEGUN if membership.last_round < 0 else Wait.CLOCK_BEHIND
        return Wait.CLOCK_DOUBTED if clock.synchronised() is False else Wait.OVER
    if number <= membership.last_round:
        return Wait.DRAWN if number == membership.last_round else Wait.CLOCK_BEHIND
    drawn = membership.drawn_rounds
    if drawn is not None and number not in drawn:
        return Wait.NOT_DRAWN if any(n > number for n in drawn) else Wait.ALL_PASSED
    opened = boottime - (now - rounds.opens(number))
    if membership.last_round >= 0 and membership.boot == clock.boot() != "":
        # Consecutive draws lie in different periods of the boot-time clock, as rounds do of the
        # wall clock. The periods never overlap, wherever in a round the wall clock claims to be.
        earliest = membership.round_opened + rounds.period
        if boottime < earliest:
            return Wait.CLOCK_AHEAD
        opened = max(opened, earliest)
    return Due(number, opened)


def index_of_value(
    attribute: Attribute,
    read: ReadValue,
    otherwise: Callable[[Attribute], int] | None = None,
) -> int | None:
    """The value's index in its domain; `otherwise` if there is no usable value, for any reason.

    Of a pair both values are read, and each is replaced by itself; it is None if either is.

    Claim P1: whether a source works, and whether what it gives is in the domain, is as private as
    the value itself. So nothing here says which it was: a source that fails, raises or gives
    nonsense is one case, without a message, and it is answered for wherever that is possible.
    """
    if attribute.cross:
        places = [index_of_value(part, read, otherwise) for part in attribute.cross]
        known = [place for place in places if place is not None]
        return attribute.joined(known) if len(known) == len(places) else None
    try:
        return attribute.index_of(read(attribute.name))
    except Exception:  # noqa: BLE001 - a source is anybody's code, and why it failed is private
        return otherwise(attribute) if otherwise else None


def stand_in(attribute: Attribute, entropy: Entropy) -> int:
    """What a device without a usable value answers before it has any memo.

    The value that stands for everything else. Bins, from -inf to inf, have none: there it is a bin
    drawn uniformly, which is as private as any value and favours none of them.
    """
    other = attribute.otherwise
    return random_below(attribute.k, entropy) if other is None else other


# --- the agent -----------------------------------------------------------------------------------


def own_randomiser(mechanism: Mechanism, device: str, entropy: Entropy) -> Randomiser:
    return mechanism.randomiser(device, entropy)


class Agent:
    """One device's decisions, over its store."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        *,
        clock: Clock | None = None,
        entropy: Entropy = os.urandom,
        trace: Trace = no_trace,
        randomiser: MakeRandomiser = own_randomiser,
    ) -> None:
        self.store = store
        self.policy = policy
        self.clock = clock or SystemClock()
        self._entropy = entropy
        self.trace = trace
        self._make_randomiser = randomiser
        self._randomisers: dict[tuple[str, str, int], Randomiser] = {}

    def check(self, manifest: Manifest, operator: bytes = b"") -> None:
        """Raise if this campaign could not be joined now, signed as it is. Draws nothing."""
        self.policy.check(manifest)
        self.policy.check_operator(manifest.campaign, operator)
        if self.clock.wall() >= manifest.expires:
            raise CampaignProblem(
                f"{manifest.campaign} has ended; nothing was drawn, sent or spent. "
                "If it has not, check this device's clock"
            )
        known, kept = self._taken_part(manifest)
        if not (is_trial(manifest) or (known and self.store.spent(known).reports)):
            check_joining(self.store, self.policy, manifest, kept, self.clock.wall())

    def _taken_part(self, manifest: Manifest) -> tuple[Membership | None, Participation | None]:
        """The campaign as it was joined before, and what of it outlives a loss."""
        known = {m.name: m for m in self.store.memberships()}.get(manifest.campaign)
        kept = self.store.before_loss(manifest.campaign)
        if known:
            progress = known.last_round, known.answers, known.manifest.digest
            kept = Participation(known.device, known.attribute_index, *progress)
        if kept and kept.digest != manifest.digest:  # a name is only the start of a digest (P3)
            raise CampaignProblem(
                f"{manifest.campaign} is the name of another campaign that this device has joined, "
                f"with digest {kept.digest.hex()}; this one's is {manifest.digest.hex()}. Two "
                "manifests do not get the same name by accident: do not trust this invitation. "
                "Nothing was changed, drawn, sent or spent"
            )
        return known, kept

    def join(
        self, invitation: Invitation, device: str | None = None, *, known_broker: bool = True
    ) -> Membership:
        """Take part: check policy and budgets, draw attribute and rounds for life, remember them.

        Joining again after `leave` continues with the same attribute, rounds and memos.
        """
        manifest = invitation.manifest
        self.check(manifest, invitation.operator)
        known, kept = self._taken_part(manifest)
        if device is not None and not is_device(device):
            raise SettingsError(
                f"invalid device name {device!r}: use 1 to 32 of a-z, 0-9 and - as --username. "
                "Nothing was drawn or sent"
            )
        if kept is None:
            attribute = random_below(len(manifest.attributes), self._entropy)
            kept = Participation("", attribute, -1, 0, manifest.digest)
        self.trace("attribute drawn")
        rounds = None if known else self._draw_rounds(manifest, kept)
        # The last round is kept also after a loss: no round is ever drawn twice.
        kept = kept._replace(device=device or kept.device or self.pseudonym())
        at = int(self.clock.wall())
        self.store.join(invitation, kept, at, rounds=rounds, known_broker=known_broker)
        self.trace("joined")
        return self.membership(manifest.campaign)

    def _draw_rounds(self, manifest: Manifest, kept: Participation) -> tuple[int, ...] | None:
        """The rounds to answer, of those that are left; None for every round.

        Answers given before a loss stay used: with those drawn now there are never more than the
        manifest's.
        """
        if not manifest.mechanisms[0].rules.draws_rounds:
            return None
        rounds, now = manifest.rounds, self.clock.wall()
        at = rounds.round_at(now)
        left = at if at is not None else 0 if now < rounds.first else rounds.count
        first, each = max(left, kept.last_round + 1), rounds.each - kept.answers
        drawn = draw_rounds(first, rounds.count, each, self._entropy)
        self.trace("rounds drawn")
        return drawn

    def pseudonym(self) -> str:
        """A random name, unlinkable to the machine: 80 bits in letters and digits."""
        return "".join(_ALPHABET[byte >> 3] for byte in self._entropy(16))

    def membership(self, campaign: str) -> Membership:
        for membership in self.store.memberships():
            if membership.name == campaign:
                return membership
        raise CampaignProblem(f"this device has not joined {campaign}; nothing was sent or spent")

    def draw(self, membership: Membership, read: ReadValue) -> Queued | Wait:
        """Draw this round's report if it is due, and make it durable before anyone can send it.

        The value is read only when a draw is allowed. A value that cannot be read is answered for
        as well, so that silence reveals nothing (P1). Raises `StorageFailure` if the disk refuses.
        """
        allowed = due(membership, self.clock)
        if isinstance(allowed, Wait):
            return allowed
        manifest, name = membership.manifest, membership.name
        self.policy.for_joined.check(manifest)
        self.policy.check_operator(name, membership.operator)
        index = self._index(membership, read)
        body, memo, is_new = self._answer(membership, index)
        encoded = make_report(manifest, allowed.round, membership.attribute_index, body).encode()
        self.trace("report drawn")
        now, deadline = int(self.clock.wall()), manifest.rounds.deadline(allowed.round)
        report = Queued(name, allowed.round, encoded, deadline, now, "queued")
        drawn = Draw(report, memo, is_new, self.clock.boot(), allowed.opened)
        self.store.record(membership, drawn)
        self.trace("report committed")
        return report

    def _index(self, member: Membership, read: ReadValue) -> int | None:
        """What to answer, as an index in the domain; None for the memo used last. In a trial
        nothing is read: the value is made up (M117)."""
        first, attribute = not self.store.memos(member.name), member.attribute
        if member.is_trial:
            return made_up_value(attribute.k, self._entropy) if first else None
        instead = partial(stand_in, entropy=self._entropy) if first else None
        return index_of_value(attribute, read, instead)

    def _answer(self, member: Membership, index: int | None) -> tuple[bytes, Memo | None, bool]:
        """The bytes, the memo they were drawn from, and whether it is new; no memo where the
        mechanism has none. Without an index it is the memo used last."""
        randomiser = self._randomiser(member)
        if member.mechanism.memos == 0 and index is not None:
            check_draw(self.store, self.policy, member, self.clock.wall())
            fresh = randomiser.memoize(randomiser.key(index))
            self.trace("answer drawn")
            return randomiser.report(fresh, 0), None, False
        key = None if index is None else randomiser.key(index)
        memo, is_new = self._memo(member, key, randomiser)
        self.trace("memo drawn" if is_new else "memo found")
        return randomiser.report(memo.body, memo.reports), memo, is_new

    def _memo(
        self, member: Membership, key: int | None, randomiser: Randomiser
    ) -> tuple[Memo, bool]:
        """The memo to report from: the key's, a new one, or at the cap the one used last."""
        memos, now = self.store.memos(member.name), self.clock.wall()
        if key in memos:
            return memos[key], False
        if key is not None and not memos:
            check_draw(self.store, self.policy, member, now)
        elif (
            key is None
            or len(memos) >= member.mechanism.memos
            or not affords_memo(self.store, self.policy, member, now)
        ):
            # Frozen: same cadence, same length, no flag. Silence would show that a value changed.
            last = member.last_value
            return memos[last if last is not None else min(memos)], False
        return Memo(key, randomiser.memoize(key), 0), True

    def _randomiser(self, member: Membership) -> Randomiser:
        key = (member.name, member.device, member.attribute_index)  # a rejoin may draw others
        if key not in self._randomisers:
            made = self._make_randomiser(member.mechanism, member.device, self._entropy)
            self._randomisers[key] = made
        return self._randomisers[key]
