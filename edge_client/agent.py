"""Deciding and drawing: the part of the agent that owns every random choice.

Claim: whatever arrives from the network, and however the clock jumps, a device draws at most one
report per round and per period of real time, and at most one memo per value. Nothing in here knows
about MQTT; nothing outside of here draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from edge_client.clock import Clock, SystemClock
from edge_client.errors import CampaignProblem, SettingsError
from edge_client.policy import Policy
from edge_client.records import Draw, Membership, Queued
from edge_client.store import Store
from edge_client.store.highwater import Participation
from edge_client.trace import Trace, no_trace
from protocol_spec import Calibration, Entropy, Manifest, Randomiser, Report, digest8
from protocol_spec import random_below as below
from protocol_spec.topics import is_device

ReadValue = Callable[[str], object]
MakeRandomiser = Callable[[Calibration, Entropy], Randomiser]

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
        trace: Trace = no_trace,
        randomiser: MakeRandomiser = Randomiser,
    ) -> None:
        self.store = store
        self.policy = policy
        self.clock = clock or SystemClock()
        self._entropy = entropy
        self._trace = trace
        self._make_randomiser = randomiser
        self._randomisers: dict[tuple[str, int], Randomiser] = {}

    def join(
        self, manifest: Manifest, *, broker: str, namespace: str, device: str | None = None
    ) -> Membership:
        """Take part: check the policy, draw the attribute for life, remember both.

        Joining again after `leave` goes on with the same attribute and memos.
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
        if not (known and self.store.memos.of(known.name)):
            self._check_budgets(manifest, kept.attribute if kept else None)
        # The last round is kept also after a loss: no round is ever drawn twice.
        shown = kept or Participation("", below(len(manifest.attributes), self._entropy), -1)
        self._trace("attribute drawn")
        self.store.campaigns.join(
            manifest,
            broker=broker,
            namespace=namespace,
            participation=shown._replace(device=device or shown.device or self.pseudonym()),
            at=int(self.clock.wall()),
        )
        self._trace("joined")
        return self.membership(manifest.campaign)

    def _check_budgets(self, manifest: Manifest, attribute: int | None) -> None:
        """Every attribute that could be asked must be affordable, or none is drawn."""
        names = [asked.name for asked in manifest.attributes]
        for name in names if attribute is None else [names[attribute]]:
            self.policy.check_budget(manifest, name, self.store.ledger.charged(name))

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
        payload = self._report(membership, allowed.round, memo)
        self._trace("report drawn")
        now, deadline = int(self.clock.wall()), membership.manifest.rounds.deadline(allowed.round)
        self.store.record(
            membership,
            Draw(
                round=allowed.round,
                value=value,
                payload=payload,
                deadline=deadline,
                at=now,
                boot=self.clock.boot(),
                round_opened=allowed.opened,
                new_memo=memo if is_new else None,
            ),
        )
        self._trace("report committed")
        return Queued(membership.name, allowed.round, payload, deadline, now, "queued")

    def _report(self, membership: Membership, number: int, memo: bytes) -> bytes:
        """A round's report as it will leave: fresh noise over the memo."""
        body = self._randomiser(membership).report(memo)
        digest, attribute = digest8(membership.manifest), membership.attribute_index
        return Report(digest, number, attribute, body).encode()

    def _memo(self, membership: Membership, wanted: int) -> tuple[int, bytes, bool]:
        """The memo to report from: this value's, a new one, or at the cap the last one used."""
        memos = self.store.memos.of(membership.name)
        if wanted in memos:
            return wanted, memos[wanted].body, False
        manifest, source = membership.manifest, membership.attribute.name
        charged = self.store.ledger.charged(source)
        if not memos:
            self.policy.check_budget(manifest, source, charged)
        elif len(memos) >= manifest.max_values or not self.policy.allows_charge(manifest, charged):
            # Frozen: same cadence, same length, no flag. Silence would show that a value changed.
            last = membership.last_value
            frozen = memos[last if last is not None else min(memos)]
            return frozen.value, frozen.body, False
        return wanted, self._randomiser(membership).memoize(wanted), True

    def _randomiser(self, membership: Membership) -> Randomiser:
        key = (membership.name, membership.attribute_index)  # a rejoin may draw another attribute
        if key not in self._randomisers:
            self._randomisers[key] = self._make_randomiser(membership.calibration, self._entropy)
        return self._randomisers[key]
