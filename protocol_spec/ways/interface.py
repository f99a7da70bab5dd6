"""What a device and a collector need to know of how a question is answered, whatever the way.

A device calls `Way.randomiser` and keeps what it is told to keep. A collector calls `Way.fault`,
then `Way.supported`, adds up bodies of the format `Way.counted` for each of `Way.channels`, and
estimates with those channels.

An *answer* is what one report says; the *body* that travels is the answer, and zeros behind it
where the manifest asks for one length of all reports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, Protocol, get_args

from protocol_spec.accounting import Spending
from protocol_spec.body import BodyFormat
from protocol_spec.calibration import Calibration
from protocol_spec.outcomes import Outcome
from protocol_spec.randomiser import Entropy
from protocol_spec.reporting import Hashed

__all__ = ["WAYS", "Reporting", "Support", "Way", "WayRandomiser"]

Reporting = Literal["memoized", "once", "hashed", "nested"]
WAYS: Final = get_args(Reporting)


class Support(NamedTuple):
    """What a report is counted as: a body of the format `Way.counted`, for one of the channels."""

    channel: int
    body: bytes


class WayRandomiser(Protocol):
    """One device's draws. It keeps no state: what is drawn once is the caller's to keep.

    In a round: `key` of the value; the memo kept for that key, else `memoize` and keep it, up to
    `Way.memos` of them; then `report`. Where `Way.memos` is 0, nothing is kept: memo and report are
    drawn anew.
    """

    def rounds(self, first: int) -> tuple[int, ...] | None:
        """The rounds to answer, of those from `first` on: drawn at joining, once. None: all."""

    def key(self, index: int) -> int:
        """What a memo belongs to: the value, or its cell."""

    def memoize(self, key: int) -> bytes:
        """Draw a memo. Once per key, ever, and stored before anything drawn from it is sent."""

    def report(self, memo: bytes, sent: int) -> bytes:
        """The answer of one round, when so many were drawn from the memo before. Once per round."""


class Way(Protocol):
    """What both sides need to know of how a question is answered."""

    @property
    def reporting(self) -> Reporting:
        """The name of the way."""

    @property
    def protocol(self) -> str:
        """The protocol that runs, as results name it."""

    @property
    def calibration(self) -> Calibration:
        """Chances to explain the noise with: of the cell (hashed), of the last level (nested)."""

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
    def channels(self) -> tuple[Calibration | Hashed, ...]:
        """The chances that devices really draw with, to estimate with: one for each level."""

    @property
    def memos(self) -> int:
        """The most memos that a device holds; 0: it keeps none."""

    @property
    def lifetime_epsilon(self) -> float:
        """The most that a device can ever spend on the question."""

    def fault(self, answer: bytes) -> Outcome | None:
        """Why bytes of the right length are no answer, or None when they are."""

    def supported(self, body: bytes, device: str) -> Support:
        """What a faultless report of that device is counted as."""

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> WayRandomiser:
        """The draws of the device of that name."""

    def epsilon_after(self, reports: int) -> float:
        """Exact privacy loss of so many reports of one memo; of so many answers, without memos."""

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """What was told so far, and charged; without memos, one number: of answers."""
