"""What a device and a collector need to know of a mechanism, whichever it is.

A device calls `Mechanism.randomiser` and stores what `Randomiser` asks it to store. A collector
calls `fault`, then `supported`, adds up bodies of the format `counted` for each of `channels`, and
estimates with those channels.

An *answer* is what one report says; the *body* that is sent is the answer, padded with zeros to
the one length of all reports of the campaign.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Protocol

from protocol_spec.accounting import Spending, spending
from protocol_spec.attributes import Attribute
from protocol_spec.calibration import Calibration, ChooseFor
from protocol_spec.encoding import BodyFormat
from protocol_spec.explanation import Explanation
from protocol_spec.outcomes import Outcome
from protocol_spec.probabilities import Probabilities
from protocol_spec.randomiser import Entropy, Randomiser, Step, as_drawn, steps

Reporting = Literal["memoized", "once", "hashed", "nested"]
Combined = Literal["pooled", "window", "latest"]
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
    """What a manifest may ask of a mechanism, for the checks of manifests and results.

    `named` are the protocols that a manifest may name, `automatic` those that `auto` can become,
    `protocols` those that can run.
    """

    named: tuple[str, ...]
    automatic: tuple[str, ...]
    protocols: tuple[str, ...]
    memo_per_value: bool = False  # `max_values`, `choose_for` and `calibration` have a meaning
    draws_rounds: bool = False  # `rounds.each` has one, and eps_1 follows from it
    has_levels: bool = False
    answers_first_value_only: bool = False
    shows_changes: bool = False  # reports of one device betray that its value changed


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a collector does with the rounds of a mechanism, and what it says to analysts.

    `combined` decides what is released, and how several rounds are estimated:

        pooled   each round with enough devices, and all of them pooled: the noise of memos stays
        window   rounds are added up until they are enough, because every answer has fresh noise
        latest   each round with enough devices; never several, which have the same devices: the
                 latest includes what the earlier ones revealed
    """

    combined: Combined
    hides: str
    floor: str  # what no number of rounds averages out
    together: str  # the result of several rounds
    caveat: str
    over_time: str = "{caveat}"  # next to the line of a value; may say {devices} and **this**
    bound: str = "eps_inf = {eps_inf}"  # of all reports
    one_report: str = "One report"  # this and the next two begin the sentences about odds
    all_reports: str = "The one answer that a device keeps for all its reports"
    answer: str = "{value}"
    no_trend: str = ""  # why nothing can be fitted over rounds


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
    def size(self) -> int:
        """How many values every report supports; 0 where unary."""

    @property
    def exact(self) -> Probabilities:
        """p1, q1 of the memo; p2, q2 of a report, given the memo."""


class Mechanism(ABC):
    """How one question is answered, for both sides. The defaults are those of two steps, RR1 and
    RR2, whose answers are counted as they are: an index, or k bits, with nothing before them.

    A field of a dataclass that replaces one of these properties is declared with `field()`, or the
    inherited property would be its default.
    """

    reporting: ClassVar[Reporting]
    rules: ClassVar[Rules]
    analysis: ClassVar[Analysis]

    @cached_property
    def calibration(self) -> Calibration:
        """To explain the noise with: of the cell (hashed), of the last level (nested). A field of
        some, a property of others, and therefore not abstract."""
        raise NotImplementedError

    @cached_property
    def memos(self) -> int:
        """The most memos that a device stores; 0 for none."""
        return 1

    @cached_property
    def lifetime_epsilon(self) -> float:
        """The most that a device can ever spend on the question."""
        return self.memos * self.calibration.eps_inf

    @cached_property
    def protocol(self) -> str:
        """The protocol that runs, as results name it; never `auto`."""
        return self.calibration.protocol

    @cached_property
    def k(self) -> int:
        """Number of values of the question."""
        return self.calibration.k

    @cached_property
    def counted(self) -> BodyFormat:
        """How the supported values of an answer are written, to be counted."""
        return self.calibration.formats[1]

    @cached_property
    def answer_bytes(self) -> int:
        """Length of every answer."""
        return self.counted.length

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """What devices really draw with, to estimate with: one for each level, level 1 first."""
        return (as_drawn(self.calibration),)

    @cached_property
    def counted_as_sent(self) -> bool:
        """Whether an answer is counted as it is, so that a collector need not call `supported`, and
        `fault` is that of `counted`."""
        made, default = type(self), Mechanism
        as_sent = made.supported is default.supported and made.fault is default.fault
        return as_sent and len(self.channels) == 1

    @abstractmethod
    def why(self, attribute: Attribute, budget: Budget) -> str:
        """Why `auto` became this protocol, for analysts."""

    @property
    def step_epsilons(self) -> list[float]:
        """The privacy loss allowed after each of `steps`, in their order."""
        return [self.calibration.eps_inf, self.calibration.eps_1]

    def steps(self, adjusted: Callable[[float], Decimal]) -> list[Step]:
        """Every randomised response, calculated for slightly `adjusted` epsilons, in the order in
        which thresholds are published."""
        return list(steps(self.calibration, adjusted))

    def fault(self, answer: bytes) -> Outcome | None:
        """Why bytes of the right length are not an answer, or None when they are."""
        return self.counted.fault(answer)

    def round_fault(self, answer: bytes, number: int) -> Outcome | None:  # noqa: ARG002
        """Why an answer cannot have been given in that round, or None when it can."""
        return None

    def supported(self, body: bytes, device: str) -> Support:  # noqa: ARG002 - same for all devices
        """What a valid report of that device counts as."""
        return Support(0, body[: self.answer_bytes])

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> Randomiser:  # noqa: ARG002
        """The draws of the device of that name."""
        return Randomiser(self.calibration, entropy)

    def epsilon_after(self, reports: int) -> float:
        """Exact privacy loss of that many reports of one memo; without memos, of answers."""
        return self.calibration.epsilon_after(reports)

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """What was disclosed and charged so far; without memos, for one number of answers."""
        return spending(self.calibration, reports_per_memo)

    # --- for the owner of a device -----------------------------------------------------------

    booked_as: ClassVar[str] = "memo drawn"  # why epsilon was booked; the agent translates it
    first_answer_begins: ClassVar[bytes] = b""  # the bytes of a first answer that are no noise

    @cached_property
    def charge(self) -> float:
        """What is booked when a memo is drawn; without memos, when an answer is."""
        return self.calibration.eps_inf

    def charge_left(self, answers: int) -> float:  # noqa: ARG002 - memos are drawn again
        """The most that can still be booked after a loss of memory and that many answers."""
        return self.lifetime_epsilon

    @abstractmethod
    def explain(self, attribute: Attribute) -> Explanation:
        """What the owner reads before joining, and in the statement."""
