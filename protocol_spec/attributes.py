"""One question of a campaign: its domain, and how a device's value finds its place in it."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from protocol_spec.body import BodyFormat
from protocol_spec.calibration import ADAPTIVE, Calibration, Choice, calibrate, choose
from protocol_spec.chances import Method
from protocol_spec.errors import UnknownValue

__all__ = ["Attribute", "bin_labels"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """A question with k possible answers: named values, or numbers sorted into bins.

    `edges` are the k + 1 ends of the bins, the first and last possibly infinite; a bin includes
    its lower end, and the last one a finite upper end as well.
    """

    name: str
    question: str
    values: tuple[str, ...]
    edges: tuple[float, ...] | None = None
    unit: str = ""
    protocol: str = "auto"
    method: Method = "exact"

    @property
    def k(self) -> int:
        """Number of possible answers."""
        return len(self.values)

    def calibration(self, eps_inf: float, eps_1: float) -> Calibration:
        """The noise this attribute gets within the campaign's budget."""
        protocol = ADAPTIVE if self.protocol == "auto" else self.protocol
        return calibrate(protocol, k=self.k, eps_inf=eps_inf, eps_1=eps_1, method=self.method)

    def choice(self, eps_inf: float, eps_1: float) -> Choice:
        """Both candidates of the adaptive choice, to explain it."""
        return choose(k=self.k, eps_inf=eps_inf, eps_1=eps_1, method=self.method)

    def body_format(self, eps_inf: float, eps_1: float) -> BodyFormat:
        """How answers to this question are written."""
        return BodyFormat(self.calibration(eps_inf, eps_1).unary, self.k)

    def index_of(self, value: object) -> int:
        """Where a value stands in the domain. The error names the attribute, never the value."""
        return self._category(value) if self.edges is None else self._bin(value, self.edges)

    def _category(self, value: object) -> int:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            return self.values.index(text)
        except ValueError:
            remedy = f"the value is none of its {self.k} values; nothing was drawn or sent"
            raise UnknownValue(self.name, remedy) from None

    def _bin(self, value: object, edges: tuple[float, ...]) -> int:
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isnan(number):
            remedy = "the value is not a number; nothing was drawn or sent"
            raise UnknownValue(self.name, remedy)
        if not edges[0] <= number <= edges[-1]:
            remedy = (
                f"the value is outside [{edges[0]:g}, {edges[-1]:g}]; nothing was drawn or sent"
            )
            raise UnknownValue(self.name, remedy)
        return min(bisect_right(edges, number), len(edges) - 1) - 1


def bin_labels(edges: tuple[float, ...], unit: str) -> tuple[str, ...]:
    """Names of the bins, such as '< 40 °C', '40 to 50 °C', '≥ 60 °C'."""
    suffix = f" {unit}" if unit else ""
    return tuple(_label(low, high) + suffix for low, high in pairwise(edges))


def _label(low: float, high: float) -> str:
    if math.isinf(low):
        return f"< {_short(high)}"
    return f"≥ {_short(low)}" if math.isinf(high) else f"{_short(low)} to {_short(high)}"


def _short(edge: float) -> str:
    return repr(edge).removesuffix(".0")
