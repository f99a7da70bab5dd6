"""LOLOHA with two cells: a device's values fall into two cells, and the cell is reported.

Claim: of two histories whose *cells change at the same moments*, the reports disclose at most
eps_inf for each cell that was visited, so never more than 2 eps_inf, however many rounds and
changes. One report alone is eps_1-LDP. **That a value changed is not hidden**: `change_log_ratio`
says how well "never" can be distinguished from "once, half-way", and it grows without limit; half
of all changes stay within a cell and are not seen at all.

Which value is in which cell is a public code, fixed by the campaign and the device's name, so that
nothing about it is sent. Other devices, whose codes differ, distinguish the values of one cell.
A report is one byte, 0 or 1.

The paper is Arcolezi et al., "Frequency Estimation of Evolving Data Under Local Differential
Privacy" (arXiv 2210.00262). The second step is calibrated exactly, as L-GRR's.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import ClassVar, Final

from protocol_spec.accounting import Spending, lifetime_odds, report_odds
from protocol_spec.attributes import Attribute
from protocol_spec.calibration import Calibration, calibrate
from protocol_spec.encoding import BodyFormat
from protocol_spec.errors import ParameterError
from protocol_spec.explanation import Explanation, Shift, phrase, phrase_odds
from protocol_spec.mechanisms.base import (
    Analysis,
    Budget,
    Channel,
    Mechanism,
    Reporting,
    Rules,
    Support,
)
from protocol_spec.outcomes import Outcome
from protocol_spec.probabilities import ONE, Probabilities, precise
from protocol_spec.randomiser import Entropy, Randomiser, as_drawn

LOLOHA: Final = "LOLOHA"  # what results call it


@dataclass(frozen=True)
class Hashed(Mechanism):
    """k values in `cell.k` cells, and the L-GRR over the cells. `digest` fixes the codes.

    As a channel from values to supported values it is unary: whether a report supports a value
    that the device does not hold depends on the code alone, and codes of values are independent.
    """

    k: int = field()
    cell: Calibration
    digest: bytes = b""
    reporting: ClassVar[Reporting] = "hashed"
    rules: ClassVar[Rules] = Rules((), (LOLOHA,), (LOLOHA,), shows_changes=True)
    analysis: ClassVar[Analysis] = Analysis(
        combined="pooled",
        hides="values, but not that they changed",
        floor="noise of the memos and of the groups",
        together="pooled",
        caveat="Each device reports, in every round, which of two groups of values its own is in: "
        "values may change, but the collector can see that a device's value changed.",
        over_time="{caveat} Errors of different rounds are not independent: the memo of a group "
        "stays.",
        bound="twice eps_inf = {eps_inf}, among histories that change at the same moments",
        all_reports="The answer that a device keeps for it",
        answer="the half of the values with {value}",
    )
    protocol = LOLOHA
    answer_bytes = 1
    unary = True
    size = 0

    @classmethod
    def calibrate(cls, *, k: int, eps_inf: float, eps_1: float, cells: int = 2) -> Hashed:
        """More than two cells can be calculated with, to compare; devices use two."""
        if k < 2:
            raise ParameterError("k", k, "an attribute has at least two values")
        return cls(k, calibrate("L-GRR", k=cells, eps_inf=eps_inf, eps_1=eps_1))

    @classmethod
    def asked(cls, attribute: Attribute, budget: Budget, digest: bytes) -> Hashed:
        made = cls.calibrate(k=attribute.k, eps_inf=budget.eps_inf, eps_1=budget.eps_1)
        return replace(made, digest=digest)

    def why(self, attribute: Attribute, budget: Budget) -> str:  # noqa: ARG002
        return "two cells, whatever the number of values"

    @cached_property
    def calibration(self) -> Calibration:
        return self.cell

    @cached_property
    def counted(self) -> BodyFormat:
        """Bits of the values in the reported cell."""
        return BodyFormat(unary=True, k=self.k)

    @property
    @precise
    def exact(self) -> Probabilities:
        """Of supporting a value; one that is not held is in the memo's cell by chance."""
        p1, _, p2, q2 = self.cell.exact
        return Probabilities(p1, ONE / self.cell.k, p2, q2)

    def as_drawn(self) -> Hashed:
        """With the probabilities that devices really use; the collector debiases with it."""
        return replace(self, cell=as_drawn(self.cell))

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        return (self.as_drawn(),)

    @cached_property
    def memos(self) -> int:
        """One for each cell."""
        return self.cell.k

    def fault(self, answer: bytes) -> Outcome | None:
        return BodyFormat(unary=False, k=self.cell.k).fault(answer)

    def supported(self, body: bytes, device: str) -> Support:
        """The values that the device's code puts in the reported cell."""
        return Support(0, support(self.code(device), body[: self.answer_bytes], self.k))

    def code(self, device: str) -> bytes:
        """The cell of every value, as k bits."""
        return code(self.digest, device, self.k)

    def randomiser(self, device: str, entropy: Entropy = os.urandom) -> Randomiser:
        return HashedRandomiser(self, self.code(device), entropy)

    def spending(self, reports_per_memo: Iterable[int]) -> Spending:
        """One number of reports for each cell that was visited: eps_inf at most for each."""
        counts = list(reports_per_memo)
        if len(counts) > self.cell.k:
            raise ParameterError("reports", counts, f"there are only {self.cell.k} cells")
        return super().spending(counts)

    @property
    @precise
    def change_seen_if_cells_differ(self) -> float:
        """Probability that the memos of two cells differ, so that many reports show the change."""
        p1, q1, _, _ = self.cell.exact
        return float(1 - 2 * p1 * q1 - (self.cell.k - 2) * q1 * q1)

    @property
    def change_seen(self) -> float:
        """Probability that a change of value is ever seen: its cells differ, and their memos."""
        return (1.0 - 1.0 / self.cell.k) * self.change_seen_if_cells_differ

    booked_as = "memo of a group drawn"

    def explain(self, attribute: Attribute) -> Explanation:
        """Cells are groups, in the owner's words."""
        return Explanation(
            one_report=phrase_odds(
                "This device's name divides the answers into two groups; only the group is "
                "reported. If your true answer is in the group of “{value}”, one report says that "
                "group {often}; if it were in the other, still {otherwise}.",
                report_odds(self.cell),
                attribute.values[0],
            ),
            all_reports=phrase_odds(
                "If your true answer is in the group of “{value}”, the one answer kept for that "
                "group says so {often}; if it were in the other, still {otherwise}.",
                lifetime_odds(self.cell),
                attribute.values[0],
            ),
            belief_one_report=Shift(self.cell.single_report_epsilon),
            belief_all_reports=phrase(
                "{factor} between histories with the same changes",
                factor=Shift(self.lifetime_epsilon),
            ),
            bound=phrase("{epsilon} for each of the two groups", epsilon=self.charge),
            booked=phrase(
                "The whole is booked when the memo of a group is drawn, because that is the most "
                "that any number of reports from it can reveal."
            ),
            not_hidden=(
                phrase(
                    "What noise cannot hide: when your value changes. Someone who keeps all your "
                    "reports can in the long run see the pattern of its changes between the two "
                    "groups, though not the values."
                ),
            ),
        )


class HashedRandomiser(Randomiser):
    """Memos of cells, and reports, of one device: at most two memos for life."""

    def __init__(self, hashed: Hashed, device_code: bytes, entropy: Entropy = os.urandom) -> None:
        if hashed.cell.k != 2:
            raise ParameterError("cells", hashed.cell.k, "devices use two cells")
        if hashed.counted.fault(device_code) is not None:
            remedy = f"must be {hashed.k} bits, zeros behind"
            raise ParameterError("code", device_code.hex(), remedy)
        super().__init__(hashed.cell, entropy)
        self._ones = set(hashed.counted.supported(device_code))
        self._k = hashed.k

    def key(self, index: int) -> int:
        """The cell of a value: 0 or 1."""
        if not 0 <= index < self._k:
            raise IndexError("the value's index is outside the domain")
        return int(index in self._ones)


def code(digest: bytes, device: str, k: int) -> bytes:
    """The cell of every value, as the bits of a unary body: of SHAKE-128(digest, device), k bits.

    `digest` is the whole one of the manifest. Device and collector both know it and the name.
    """
    values = BodyFormat(unary=True, k=k)
    drawn = hashlib.shake_128(digest + device.encode("ascii")).digest(values.length)
    return values.from_number(values.to_number(drawn))


def support(device_code: bytes, report: bytes, k: int) -> bytes:
    """The values that a report supports, as a unary body: the code, or its complement."""
    values = BodyFormat(unary=True, k=k)
    bits = values.to_number(device_code)
    return values.from_number(bits if report == b"\x01" else bits ^ ((1 << k) - 1))


@precise
def change_log_ratio(cell: Calibration, reports: int) -> float:
    """Largest log-ratio between changing the cell once, half-way, and never, for two cells.

    The most revealing reports name one cell throughout the first half and the other throughout the
    second. There is no limit: it grows with every report, unlike the sum in a ledger.
    """
    if cell.k != 2 or cell.unary:
        raise ParameterError("k", cell.k, "the ratio is that of L-GRR over two cells")
    if reports < 2:
        raise ParameterError("reports", reports, "a change needs a report before and one after it")
    p1, q1, p2, q2 = cell.exact
    before, after = reports // 2, reports - reports // 2
    changed = math.prod((p1 * p2**t + q1 * q2**t for t in (before, after)), start=ONE)
    first, second = p2**before * q2**after, q2**before * p2**after
    never = min(Decimal(p1 * first + q1 * second), Decimal(q1 * first + p1 * second))
    return float((changed / never).ln())
