"""Deciding and drawing: the part of the agent that owns every random choice.

Claim: whatever arrives from the network, and however the clock jumps, a device draws at most one
report per round and per period of real time, and at most one memo per value. Nothing in here knows
about MQTT; nothing outside of here draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from edge_client.clock import Clock, SystemClock
from edge_client.errors import CampaignProblem, SettingsError
from edge_client.highwater import Life
from edge_client.policy import Policy
from edge_client.records import Draw, Membership, Queued
from edge_client.store import Store
from protocol_spec import Entropy, Manifest, Randomiser, Report, digest8
from protocol_spec import random_below as below
from protocol_spec.topics import is_device

ReadValue = Callable[[str], object]
Trace = Callable[[str], None]

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


class Wait(Enum):
    """Why nothing is drawn now, in words for the owner."""

    PAUSED = "paused by you"
    LEFT = "you have left this campaign"
    CLOCK_EARLY = "the clock is before the campaign's creation; waiting for the right time"
    NOT_BEGUN = "the first round has not begun"
    OVER = "all rounds are over"
    DRAWN = "this round's report is drawn; waiting for the next round"
    CLOCK_BEHIND = "the clock is behind the last round drawn; waiting until it has caught up"
    CLOCK_AHEAD = "the clock ran ahead; waiting until a full period has really passed"


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
    if number <= membership.last_round:
        return Wait.DRAWN if number == membership.last_round else Wait.CLOCK_BEHIND
    opened = steady - (now - rounds.opens(number))
    if membership.last_round >= 0 and membership.boot == clock.boot() != "":
        # Consecutive draws lie in different periods of the steady clock, as rounds do of the wall
        # clock. The periods never overlap, wherever in a round the wall clock claims to be.
        earliest = membership.round_opened + rounds.period
        if steady < earliest:
            return Wait.CLOCK_AHEAD
        opened = max(opened, earliest)
    return Due(number, opened)


class Agent:
    """One device's decisions, over its store."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        *,
        clock: Clock | None = None,
        entropy: Entropy = os.urandom,
        trace: Trace = lambda _: None,
    ) -> None:
        self.store = store
        self.policy = policy
        self.clock = clock or SystemClock()
        self._entropy = entropy
        self._trace = trace
        self._randomisers: dict[str, Randomiser] = {}

    def join(
        self, manifest: Manifest, *, broker: str, namespace: str, device: str | None = None
    ) -> Membership:
        """Take part: check the policy, draw the attribute for life, remember both.

        Joining again after `leave` goes on with the same attribute and memos.
        """
        self.check(manifest)
        known = {m.name: m for m in self.store.memberships()}.get(manifest.campaign)
        kept = self.store.kept_life(manifest.campaign)
        if known:
            kept = Life(known.device, known.attribute_index, known.last_round)
        if device is not None and not is_device(device):
            raise SettingsError(
                f"{device!r} is no device name; nothing was drawn or sent. "
                "Use 1 to 32 of a-z, 0-9 and - as --username"
            )
        if not (known and self.store.memos(known.name)):
            self._check_budgets(manifest, kept.attribute if kept else None)
        life = kept or Life("", below(len(manifest.attributes), self._entropy), -1)
        self._trace("attribute drawn")
        self.store.join(
            manifest,
            broker=broker,
            namespace=namespace,
            device=device or life.device or self.pseudonym(),
            attribute=life.attribute,
            at=int(self.clock.wall()),
            last_round=life.last_round,  # also after a loss: no round is ever drawn twice
        )
        self._trace("joined")
        return self.membership(manifest.campaign)

    def _check_budgets(self, manifest: Manifest, attribute: int | None) -> None:
        """Every attribute that could be asked must be affordable, or none is drawn."""
        names = [asked.name for asked in manifest.attributes]
        for name in names if attribute is None else [names[attribute]]:
            self.policy.check_budget(manifest, name, self.store.charged(name))

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
        for membership in self.store.memberships():
            if membership.name == campaign:
                return membership
        raise CampaignProblem(f"this device has not joined {campaign}; nothing was sent or spent")

    def draw(self, membership: Membership, read: ReadValue) -> Queued | Wait:
        """Draw this round's report if it is due, and make it durable before anyone can send it.

        The value is read only when a draw is allowed. Raises `SourceFailure` or `UnknownValue`
        before any randomness is used, `StorageFailure` if the disk refuses.
        """
        allowed = due(membership, self.clock)
        if isinstance(allowed, Wait):
            return allowed
        self.policy.check(membership.manifest)
        wanted = membership.attribute.index_of(read(membership.attribute.name))
        value, memo, is_new = self._memo(membership, wanted)
        self._trace("memo drawn" if is_new else "memo found")
        manifest = membership.manifest
        report = Report(
            digest8(manifest),
            allowed.round,
            membership.attribute_index,
            self._randomiser(membership).report(memo),
        )
        now = self.clock.wall()
        deadline = manifest.rounds.deadline(allowed.round)
        payload = report.encode()
        self._trace("report drawn")
        self.store.record(
            membership,
            Draw(
                allowed.round,
                value,
                payload,
                deadline,
                int(now),
                self.clock.boot(),
                allowed.opened,
                memo if is_new else None,
            ),
        )
        self._trace("report committed")
        return Queued(membership.name, allowed.round, payload, deadline, int(now), "queued")

    def _memo(self, membership: Membership, wanted: int) -> tuple[int, bytes, bool]:
        """The memo to report from: this value's, a new one, or at the cap the last one used."""
        memos = self.store.memos(membership.name)
        if wanted in memos:
            return wanted, memos[wanted].body, False
        manifest, source = membership.manifest, membership.attribute.name
        charged = self.store.charged(source)
        if not memos:
            self.policy.check_budget(manifest, source, charged)
        elif len(memos) >= manifest.max_values or not self.policy.allows_charge(manifest, charged):
            # Frozen: same cadence, same length, no flag. Silence would show that a value changed.
            last = membership.last_value
            frozen = memos[last if last is not None else min(memos)]
            return frozen.value, frozen.body, False
        return wanted, self._randomiser(membership).memoize(wanted), True

    def _randomiser(self, membership: Membership) -> Randomiser:
        if membership.name not in self._randomisers:
            self._randomisers[membership.name] = Randomiser(membership.calibration, self._entropy)
        return self._randomisers[membership.name]
