"""Deciding and drawing: the part of the agent that owns every random choice.

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

from edge_client.budget import needed_to_join, used
from edge_client.clock import Clock, SystemClock
from edge_client.errors import CampaignProblem, SettingsError, SourceFailure
from edge_client.policy import Policy
from edge_client.records import Draw, Membership, Memo, Queued
from edge_client.store import Store
from edge_client.store.highwater import Participation
from edge_client.trace import Trace, no_trace
from protocol_spec import Entropy, Manifest, UnknownValue, Way, WayRandomiser, make_report
from protocol_spec import random_below as below
from protocol_spec.reporting import draw_rounds
from protocol_spec.topics import is_device

ReadValue = Callable[[str], object]
MakeRandomiser = Callable[[Way, str, Entropy], WayRandomiser]

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


class Wait(StrEnum):
    """Why nothing is drawn now, in words for the owner."""

    PAUSED = "paused by you"
    LEFT = "you have left this campaign"
    CLOCK_EARLY = "the clock is before the campaign's creation; waiting for the right time"
    NOT_BEGUN = "the first round has not begun"
    OVER = "all rounds are over"
    DRAWN = "this round's report is drawn; waiting for the next round"
    CLOCK_BEHIND = "the clock is behind the last round drawn; waiting until it has caught up"
    CLOCK_AHEAD = "the clock ran ahead; waiting until a full period has really passed"
    NOT_DRAWN = "this device drew other rounds to answer; waiting for the next of them"
    ALL_PASSED = "the rounds that this device drew to answer have passed"


@dataclass(frozen=True, slots=True)
class Due:
    """A round that may be drawn now, and when it opened by the steady clock."""

    round: int
    opened: float


def due(membership: Membership, clock: Clock) -> Due | Wait:
    """Whether a draw is allowed at this moment. Pure: asks the clocks, changes nothing."""
    now, steady, rounds = clock.wall(), clock.steady(), membership.manifest.rounds
    if membership.status != "joined":
        return Wait.PAUSED if membership.status == "paused" else Wait.LEFT
    if now < membership.manifest.created:
        return Wait.CLOCK_EARLY
    number = rounds.round_at(now)
    if number is None:
        return Wait.NOT_BEGUN if now < rounds.first else Wait.OVER
    if passed := _not_to_answer(membership, number):
        return passed
    opened = steady - (now - rounds.opens(number))
    if membership.last_round >= 0 and membership.boot == clock.boot() != "":
        # Consecutive draws lie in different periods of the steady clock, as rounds do of the wall
        # clock. The periods never overlap, wherever in a round the wall clock claims to be.
        earliest = membership.round_opened + rounds.period
        if steady < earliest:
            return Wait.CLOCK_AHEAD
        opened = max(opened, earliest)
    return Due(number, opened)


def _not_to_answer(membership: Membership, number: int) -> Wait | None:
    """Why this device draws nothing in a round that is open."""
    if number <= membership.last_round:
        return Wait.DRAWN if number == membership.last_round else Wait.CLOCK_BEHIND
    drawn = membership.drawn_rounds
    if drawn is None or number in drawn:
        return None
    return Wait.NOT_DRAWN if any(n > number for n in drawn) else Wait.ALL_PASSED


def own_randomiser(way: Way, device: str, entropy: Entropy) -> WayRandomiser:
    """The draws that a campaign's manifest asks for."""
    return way.randomiser(device, entropy)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one round says, and what is kept of how it was drawn."""

    body: bytes
    key: int | None
    new_memo: bytes | None


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
        self._trace = trace
        self._make_randomiser = randomiser
        self._randomisers: dict[tuple[str, str, int], WayRandomiser] = {}

    # --- joining -----------------------------------------------------------------------------

    def join(
        self, manifest: Manifest, *, broker: str, namespace: str, device: str | None = None
    ) -> Membership:
        """Take part: check the policy, draw attribute and rounds for life, remember them.

        Joining again after `leave` goes on with the same attribute, rounds and memos.
        """
        self.check(manifest)
        known = {m.name: m for m in self.store.campaigns.all()}.get(manifest.campaign)
        kept = self.store.campaigns.before_loss(manifest.campaign)
        if known:
            kept = Participation(known.device, known.attribute_index, known.last_round)
        if device is not None and not is_device(device):
            raise SettingsError(
                f"invalid device name {device!r}: use 1 to 32 of a-z, 0-9 and - as --username. "
                "Nothing was drawn or sent"
            )
        if not (known and self.store.spent(known).reports):
            self._check_budgets(manifest, kept)
        # The last round is kept also after a loss: no round is ever drawn twice.
        shown = kept or Participation("", below(len(manifest.attributes), self._entropy), -1)
        self._trace("attribute drawn")
        rounds = None if known else self._draw_rounds(manifest, shown)
        self.store.campaigns.join(
            manifest,
            broker=broker,
            namespace=namespace,
            participation=shown._replace(device=device or shown.device or self.pseudonym()),
            at=int(self.clock.wall()),
            rounds=rounds,
        )
        self._trace("joined")
        return self.membership(manifest.campaign)

    def _draw_rounds(self, manifest: Manifest, shown: Participation) -> tuple[int, ...] | None:
        """The rounds to answer, of those that are left; None for every round.

        Answers given before a loss stay used: with those drawn now there are never more than the
        manifest's.
        """
        if manifest.reporting != "once":
            return None
        rounds, now = manifest.rounds, self.clock.wall()
        at = rounds.round_at(now)
        left = at if at is not None else 0 if now < rounds.first else rounds.count
        first, each = max(left, shown.last_round + 1), rounds.each - shown.answers
        drawn = draw_rounds(first, rounds.count, each, self._entropy)
        self._trace("rounds drawn")
        return drawn

    def _check_budgets(self, manifest: Manifest, kept: Participation | None) -> None:
        """Every attribute that could be asked must be affordable, or none is drawn."""
        names = [asked.name for asked in manifest.attributes]
        for name in names if kept is None else [names[kept.attribute]]:
            self._check_budget(manifest, name, needed_to_join(manifest, kept))

    def _check_budget(self, manifest: Manifest, source: str, needed: float) -> None:
        already = used(self.store, source, manifest.campaign, self.clock.wall())
        self.policy.check_budget(manifest.campaign, source, needed, already)

    def check(self, manifest: Manifest) -> None:
        """Raise if this campaign could not be joined now. Draws nothing."""
        self.policy.check(manifest)
        if self.clock.wall() >= manifest.expires:
            raise CampaignProblem(
                f"{manifest.campaign} has ended; nothing was drawn, sent or spent. "
                "If it has not, check this device's clock"
            )

    def pseudonym(self) -> str:
        """A random name, unlinkable to the machine: 80 bits in letters and digits."""
        return "".join(_ALPHABET[byte >> 3] for byte in self._entropy(16))

    def membership(self, campaign: str) -> Membership:
        """A joined campaign by its name."""
        for membership in self.store.campaigns.all():
            if membership.name == campaign:
                return membership
        raise CampaignProblem(f"this device has not joined {campaign}; nothing was sent or spent")

    # --- drawing -----------------------------------------------------------------------------

    def draw(self, membership: Membership, read: ReadValue) -> Queued | Wait:
        """Draw this round's report if it is due, and make it durable before anyone can send it.

        The value is read only when a draw is allowed. Raises `SourceFailure` or `UnknownValue`
        before any randomness is used, `StorageFailure` if the disk refuses.
        """
        allowed = due(membership, self.clock)
        if isinstance(allowed, Wait):
            return allowed
        self.policy.check(membership.manifest)
        answer = self._answer(membership, self._read(membership, read))
        manifest, attribute = membership.manifest, membership.attribute_index
        payload = make_report(manifest, allowed.round, attribute, answer.body).encode()
        self._trace("report drawn")
        now, deadline = int(self.clock.wall()), manifest.rounds.deadline(allowed.round)
        self.store.record(
            membership,
            Draw(
                round=allowed.round,
                value=answer.key,
                payload=payload,
                deadline=deadline,
                at=now,
                boot=self.clock.boot(),
                round_opened=allowed.opened,
                new_memo=answer.new_memo,
            ),
        )
        self._trace("report committed")
        return Queued(membership.name, allowed.round, payload, deadline, now, "queued")

    def _read(self, membership: Membership, read: ReadValue) -> int | None:
        """The value's place in the domain; None to report from the last memo.

        In format 2 a source that fails is answered for as well, so that silence tells nothing, and
        where it cannot be, what is said of it is always the same.
        """
        attribute = membership.attribute
        try:
            return attribute.index_of(read(attribute.name))
        except (SourceFailure, UnknownValue):
            if membership.manifest.format == 1:
                raise
        if membership.way.memos == 0 and attribute.otherwise is not None:
            return attribute.otherwise
        if self.store.memos.of(membership.name):
            return None
        raise SourceFailure(
            f"attribute {attribute.name!r}, which this device drew for life, has no usable value; "
            "nothing was drawn or sent. allomfree-edge doctor tells why"
        )

    def _answer(self, membership: Membership, index: int | None) -> Answer:
        randomiser, way = self._randomiser(membership), membership.way
        if way.memos == 0 and index is not None:
            manifest, source = membership.manifest, membership.attribute.name
            self._check_budget(manifest, source, manifest.eps_1)
            fresh = randomiser.memoize(randomiser.key(index))
            self._trace("answer drawn")
            return Answer(randomiser.report(fresh, 0), None, None)
        memo, is_new = self._memo(membership, index)
        self._trace("memo drawn" if is_new else "memo found")
        body = randomiser.report(memo.body, memo.reports)
        return Answer(body, memo.value, memo.body if is_new else None)

    def _memo(self, membership: Membership, index: int | None) -> tuple[Memo, bool]:
        """The memo to report from: this value's, a new one, or at the cap the last one used."""
        memos, randomiser = self.store.memos.of(membership.name), self._randomiser(membership)
        if index is None:
            return _last_used(membership, memos), False
        key = randomiser.key(index)
        if key in memos:
            return memos[key], False
        manifest, source = membership.manifest, membership.attribute.name
        if not memos:
            self._check_budget(manifest, source, manifest.eps_inf)
        elif len(memos) >= membership.way.memos or not self._affords_memo(membership):
            # Frozen: same cadence, same length, no flag. Silence would show that a value changed.
            return _last_used(membership, memos), False
        return Memo(key, randomiser.memoize(key), 0), True

    def _affords_memo(self, membership: Membership) -> bool:
        source = membership.attribute.name
        already = used(self.store, source, membership.name, self.clock.wall())
        return self.policy.allows_charge(membership.manifest.eps_inf, already)

    def _randomiser(self, membership: Membership) -> WayRandomiser:
        # A rejoin may draw another name or attribute.
        key = (membership.name, membership.device, membership.attribute_index)
        if key not in self._randomisers:
            way, device = membership.way, membership.device
            self._randomisers[key] = self._make_randomiser(way, device, self._entropy)
        return self._randomisers[key]


def _last_used(membership: Membership, memos: dict[int, Memo]) -> Memo:
    last = membership.last_value
    return memos[last if last is not None else min(memos)]
