"""What a device and a collector need to know of a mechanism, whichever it is.

A device calls `Mechanism.randomiser` and stores what it is told to store. A collector calls
`fault`, then `supported`, adds up bodies of the format `counted` for each of `channels`, and
estimates with those channels.

An *answer* is what one report says; the *body* that travels is the answer, followed by zeros up to
the one length of all reports of the campaign.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

from protocol_spec.accounting import Spending
from protocol_spec.calibration import Calibration, ChooseFor
from protocol_spec.encoding import BodyFormat
from protocol_spec.outcomes import Outcome
from protocol_spec.probabilities import Probabilities, exact_probabilities
from protocol_spec.randomiser import Entropy, as_drawn

Reporting = Literal["memoized", "once", "hashed", "nested"]
Step = tuple[Decimal, Decimal]  # p and q of one randomised response
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a manifest asks for on behalf of all its questions."""

    reporting: Reporting
    eps_inf: float
    eps_1: float
    rounds: int
    each: int = 0
    max_values: int = 1
    choose_for: ChooseFor = "round"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a manifest may ask of a mechanism; the manifest's checks and the results' use it.

    `named` are the protocols that a manifest may name, `automatic` those that `auto` can become,
    `protocols` those that can run.
    """

    named: tuple[str, ...]
    automatic: tuple[str, ...]
    protocols: tuple[str, ...]
    memo_per_value: bool = False  # `max_values`, `choose_for` and `calibration` have a meaning
    draws_rounds: bool = False  # `rounds.each` has one, and eps_1 follows from it
    has_levels: bool = False
    steady: bool = False  # a device goes on answering with its first value


class Support(NamedTuple):
    """What a report counts as: a body of the format `Mechanism.counted`, for one channel."""

    channel: int
    body: bytes


class Channel(Protocol):
    """Whatever turns values into reports with four known probabilities, such as a `Calibration`."""

    @property
    def k(self) -> int:
        """Number of values."""

    @property
    def unary(self) -> bool:
        """Whether values are supported independently of each other, given the true one."""

    @property
    def exact(self) -> Probabilities:
        """p1, q1 of the memo; p2, q2 of a report, given the memo."""


class MechanismRandomiser(Protocol):
    """One device's draws. It keeps no state: what is drawn once is the caller's to store.

    In a round: `key` of the value; the memo stored for that key, else `memoize` and store it, up to
    `Mechanism.memos` of them; then `report`. Where `Mechanism.memos` is 0 nothing is stored: memo
    and report are drawn again each time.
    """

    def rounds(self, first: int) -> tuple[int, ...] | None:
        """The rounds to answer, of those from `first` on: drawn at joining, once. None: all."""

    def key(self, index: int) -> int:
        """What a memo belongs to: the value, or its cell."""

    def memoize(self, key: int) -> bytes:
        """Draw a memo. Once per key, ever, and stored before anything drawn from it is sent."""

    def report(self, memo: bytes, sent: int) -> bytes:
        """The answer of one round, after `sent` earlier ones from this memo. Once per round."""


class Mechanism(Protocol):
    """How one question is answered, for both sides."""

    @property
    def reporting(self) -> Reporting:
        """The mechanism's name in manifests."""

    @property
    def rules(self) -> Rules:
        """What a manifest may ask of it."""

    @property
    def protocol(self) -> str:
        """The protocol that runs, as results name it; never `auto`."""

    @property
    def calibration(self) -> Calibration:
        """To explain the noise with: of the cell (hashed), of the last level (nested)."""

    @property
    def k(self) -> int:
        """Number of values of the question."""

    @property
    def answer_bytes(self) -> int:
        """Length of every answer."""

    @property
    def counted(self) -> BodyFormat:
        """How the supported values of an answer are written, to be counted."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """What devices really draw with, to estimate with: one for each level."""

    @property
    def memos(self) -> int:
        """The most memos that a device stores; 0 for none."""

    @property
    def lifetime_epsilon(self) -> float:
        """The most that a device can ever spend on the question."""

    @property
    def step_epsilons(self) -> list[float]:
        """The privacy loss allowed after each of `steps`, in their order."""

    def steps(self, adjusted: Callable[[float], Decimal]) -> list[Step]:
        """p and q of every randomised response, calculated for epsilons that are `adjusted` a
        little; in the order in which thresholds are published."""

    def fault(self, answer: bytes) -> Outcome | None:
        """Why bytes of the right length are no answer, or None when they are."""

    def supported(self, body: bytes, device: str) -> Support:
        """What a faultless report of that device counts as."""

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> MechanismRandomiser:
        """The draws of the device of that name."""

    def epsilon_after(self, reports: int) -> float:
        """Exact privacy loss of that many reports of one memo; without memos, of answers."""

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """What was disclosed and charged so far; without memos, one number: of answers."""


def two_steps(noise: Calibration, adjusted: Callable[[float], Decimal]) -> list[Step]:
    """RR1 and RR2 for adjusted epsilons."""
    p1, q1, p2, q2 = exact_probabilities(
        noise.protocol, noise.k, adjusted(noise.eps_inf), adjusted(noise.eps_1), noise.method
    )
    return [(p1, q1), (p2, q2)]


class PlainAnswers:
    """Answers that are counted as they are: an index, or k bits, with nothing before them."""

    calibration: Calibration

    @property
    def protocol(self) -> str:
        return self.calibration.protocol

    @property
    def k(self) -> int:
        return self.calibration.k

    @cached_property
    def counted(self) -> BodyFormat:
        return BodyFormat(self.calibration.unary, self.k)

    @property
    def answer_bytes(self) -> int:
        return self.counted.length

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        return (as_drawn(self.calibration),)

    def fault(self, answer: bytes) -> Outcome | None:
        return self.counted.fault(answer)

    def supported(self, body: bytes, device: str) -> Support:  # noqa: ARG002 - same for all devices
        return Support(0, body[: self.answer_bytes])
