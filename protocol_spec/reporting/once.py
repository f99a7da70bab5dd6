"""One round for life: a device also draws the rounds in which it answers, and is silent otherwise.

Claim: everything a device ever sends is `each` x epsilon-LDP with respect to its whole history of
values, whatever changes, how often and when. The draw of the rounds does not look at the data;
given it, the output depends on the values of those rounds only, each answered once, with epsilon.

There is no memo. Noise of different rounds is independent, so a window of rounds may be added up,
and trends may be fitted. The price: a round is answered by `each` of `rounds` of the devices.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from protocol_spec.accounting import Spending
from protocol_spec.calibration import Calibration, calibrate_once
from protocol_spec.errors import ParameterError
from protocol_spec.precision import precise
from protocol_spec.randomiser import Entropy, Randomiser, below

__all__ = ["Once", "OnceRandomiser", "better_once", "draw_rounds"]


@dataclass(frozen=True, slots=True)
class Once:
    """A device answers `each` of a campaign's `rounds`, each answer with the whole of epsilon."""

    calibration: Calibration
    rounds: int
    each: int

    @classmethod
    def calibrate(
        cls, protocol: str = "auto", *, k: int, epsilon: float, rounds: int, each: int = 1
    ) -> Once:
        """A one-time protocol, or "auto" for the better of GRR and OUE."""
        if rounds < 1:
            raise ParameterError("rounds", rounds, "a campaign has at least one round")
        if not 1 <= each <= rounds:
            raise ParameterError("each", each, f"a device answers from 1 to {rounds} rounds")
        if protocol == "auto":
            return cls(better_once(k, epsilon), rounds, each)
        return cls(calibrate_once(protocol, k=k, epsilon=epsilon), rounds, each)

    @property
    def epsilon(self) -> float:
        """Of one answer."""
        return self.calibration.eps_inf

    @property
    def lifetime_epsilon(self) -> float:
        """Of all that a device ever sends."""
        return self.each * self.epsilon

    def spending(self, answers: int) -> Spending:
        """What so many answers have told; all that were drawn are charged from the start."""
        if not 0 <= answers <= self.each:
            raise ParameterError("answers", answers, f"a device answers {self.each} rounds or less")
        return Spending(answers, answers, answers * self.epsilon, self.lifetime_epsilon)

    def expected_reports(self, devices: int, window: int = 1) -> float:
        """How many of the devices answer within so many rounds, on average."""
        return devices * self.each * window / self.rounds

    def window_variance(self, devices: int, window: int, f: float) -> tuple[float, float]:
        """(from privacy noise, from sampling) of a frequency over a window of rounds."""
        if devices < 1:
            raise ParameterError("devices", devices, "a number of devices is 1 or more")
        if not 1 <= window <= self.rounds:
            raise ParameterError("window", window, f"has from 1 to {self.rounds} rounds")
        heard = self.expected_reports(devices, window)
        return self.calibration.pooled_variance(1, 1, f) / heard, f * (1.0 - f) / heard


class OnceRandomiser:
    """Draws one attribute's rounds and answers. It keeps no state: each answer is drawn once."""

    def __init__(self, once: Once, entropy: Entropy = os.urandom) -> None:
        self._once = once
        self._response = Randomiser(once.calibration, entropy)
        self._entropy = entropy

    def rounds(self, first: int = 0) -> tuple[int, ...]:
        """The rounds to answer, of those from `first` on. Drawn at joining, once, for life."""
        return draw_rounds(first, self._once.rounds, self._once.each, self._entropy)

    def answer(self, index: int) -> bytes:
        """The answer for the value that holds in a drawn round."""
        return self._response.memoize(index)


def draw_rounds(
    first: int, count: int, each: int, entropy: Entropy = os.urandom
) -> tuple[int, ...]:
    """`each` of the rounds first..count-1, every set of them equally likely; all if fewer are left.

    Floyd's way: as many draws as rounds, no list of all rounds, no modulo bias.
    """
    left = max(count - first, 0)
    drawn: set[int] = set()
    for last in range(max(left - each, 0), left):
        candidate = below(last + 1, entropy)
        drawn.add(last if candidate in drawn else candidate)
    return tuple(sorted(first + number for number in drawn))


@precise
def better_once(k: int, epsilon: float) -> Calibration:
    """GRR where its variance at f = 0 is not above OUE's, which is k <= 3 e^epsilon + 2.

    In decimals: ties of the two variances would fall at random in floats.
    """
    grr, oue = (calibrate_once(protocol, k=k, epsilon=epsilon) for protocol in ("GRR", "OUE"))
    first, second = _at_zero(grr, oue)
    return grr if first <= second else oue


def _at_zero(*candidates: Calibration) -> Iterator[Decimal]:
    """Variance of one answer about a value that nobody holds."""
    for candidate in candidates:
        p, q, _, _ = candidate.exact
        yield q * (1 - q) / (p - q) ** 2
