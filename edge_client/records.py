"""What the modules pass to each other: an invitation, a membership, a memo, a report, a charge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from protocol_spec import Attribute, Manifest, Mechanism, Topics, is_trial
from protocol_spec.programs.settings import BrokerUrl

PAIR: Final = "+"  # between the names of two sources; in no name of one

Trace = Callable[[str], None]
"""Called with the name of each point where a process can be killed; tests stop an agent there."""

Status = Literal["joined", "paused", "left"]
Treatment = Literal["none", "shown", "withheld"]  # of credentials, by a broker
Fate = Literal["queued", "counted", "missed", "closed", "withdrawn"]
FORGOTTEN: Final = "forgotten"  # the decision that stays of a campaign that was wiped


def no_trace(_point: str) -> None:
    """The default: passing a point has no effect."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How many seconds the agent waits for what; that decides when something is sent, never what.

    A pause that doubles is kept below its `longest`.
    """

    step_seconds: float = 1.0  # one turn of the loop, if nothing happens
    resend_seconds: float = 15.0  # after the first sending; doubles
    resend_longest_seconds: float = 900.0
    receipt_seconds: float = 3.0  # until a collector has published the receipt of what it got
    reconnect_seconds: float = 2.0  # after the first failure; doubles
    reconnect_longest_seconds: float = 300.0
    stable_after_seconds: float = 5.0  # a connection that lasted this long resets the pause
    source_retry_seconds: float = 30.0  # after a draw that failed
    state_wait_seconds: float = 30.0  # at most, for the collector's state, before a draw in doubt


@dataclass(frozen=True, slots=True)
class Invitation:
    """A campaign that could be joined, and where it came from.

    `whole_digest` says that the invitation named the manifest's whole digest; `operator` is the key
    whose signature was verified: empty if there is none, or if it could not be checked.
    """

    manifest: Manifest
    broker: BrokerUrl
    namespace: str
    whole_digest: bool = False
    operator: bytes = b""
    labels: Mapping[str, str] = field(default_factory=dict)  # public, from the device's invitation


@dataclass(frozen=True)
class Membership:
    """A campaign that this device has joined, as the database has it."""

    name: str
    manifest: Manifest
    broker: str
    namespace: str
    device: str
    attribute_index: int
    status: Status
    joined: int
    last_round: int
    last_value: int | None
    boot: str
    round_opened: float
    answers: int = 0  # given so far, where no memo counts them
    operator: bytes = b""  # whose signature was verified when it was joined
    known_broker: bool = True  # whether credentials were for its broker when it was joined
    mqtt: int = 5  # the version that its broker speaks
    drawn_rounds: tuple[int, ...] | None = None  # the only ones it answers; None: every round

    @property
    def attribute(self) -> Attribute:
        return self.manifest.attributes[self.attribute_index]

    @property
    def sources(self) -> tuple[str, ...]:
        """Whose values an answer discloses: two for a pair."""
        return tuple(part.name for part in self.attribute.parts)

    @property
    def mechanism(self) -> Mechanism:
        return self.manifest.mechanisms[self.attribute_index]

    @property
    def is_trial(self) -> bool:
        """Whether its answers are made up: then it is charged nothing (M117)."""
        return is_trial(self.manifest)

    @cached_property
    def topics(self) -> Topics:
        return Topics(self.name, self.namespace)


@dataclass(frozen=True, slots=True)
class Memo:
    """A permanent answer, B', of one value; or of one cell, or of all levels, by mechanism."""

    value: int
    body: bytes
    reports: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A report as it left or will leave: the same bytes for ever."""

    campaign: str
    round: int
    payload: bytes
    deadline: int
    drawn: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One charge against a source of private values, or against both of a pair, as `a+b`."""

    at: int
    campaign: str
    source: str
    epsilon: float
    reason: str

    @property
    def sources(self) -> list[str]:
        return self.source.split(PAIR)


@dataclass(frozen=True, slots=True)
class Draw:
    """Everything one round adds to the memory, written in one transaction.

    `memo` is what the report was drawn from; None where nothing about the value is kept.
    """

    report: Queued
    memo: Memo | None
    is_new: bool  # the memo
    boot: str
    round_opened: float
