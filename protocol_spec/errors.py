"""Everything that can be refused, in one tree.

AllomfreeError
├── ParameterError (ValueError)     a number the mathematics cannot use; the caller fixes it
│   └── InfeasibleBudget            the protocol cannot reach that eps_1; carries the largest it can
├── ManifestError (ValueError)      a campaign's manifest is not acceptable; its author fixes it
└── UnknownValue (ValueError)       a device's value is outside the domain; its owner fixes it

A bad message from the network is not an exception but data: see `protocol_spec.outcomes`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

__all__ = [
    "AllomfreeError",
    "InfeasibleBudget",
    "ManifestError",
    "ParameterError",
    "Problem",
    "UnknownValue",
]


class AllomfreeError(Exception):
    """Base of every error that a caller or a user can do something about."""


class ParameterError(AllomfreeError, ValueError):
    """A parameter is outside the range for which the protocol is defined."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {value!r}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class InfeasibleBudget(ParameterError):
    """The protocol's fixed p2 = 1/2 keeps a single report below the eps_1 asked for."""

    def __init__(self, protocol: str, eps_inf: float, eps_1: float, largest: float) -> None:
        super().__init__(
            "eps_1",
            eps_1,
            f"{protocol} with eps_inf = {eps_inf!r} reaches at most eps_1 = {largest!r}; "
            "ask for that or less, or choose L-OSUE, which reaches every eps_1 below eps_inf",
        )
        self.largest = largest


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a manifest: where, what was found, and what would be right."""

    field: str
    value: object
    remedy: str

    def __str__(self) -> str:
        shown = _shown(self.value)
        return (
            f"{self.field} = {shown if len(shown) <= 160 else shown[:157] + '...'}: {self.remedy}"
        )


_BOUNDED = reprlib.Repr()  # of depth and length: a hostile manifest must not overflow the stack
_BOUNDED.maxstring = 160
_BOUNDED.maxlevel = 3


def _shown(value: object) -> str:
    """A value as its author wrote it, as far as that is safe: it may be hostile."""
    return str(value) if isinstance(value, datetime) else _BOUNDED.repr(value)


class ManifestError(AllomfreeError, ValueError):
    """A manifest is refused; `problems` lists every reason found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class UnknownValue(AllomfreeError, ValueError):
    """A value is not one of the attribute's. The value itself is private and never shown."""

    def __init__(self, attribute: str, remedy: str) -> None:
        super().__init__(f"attribute {attribute!r}: {remedy}")
        self.attribute = attribute
        self.remedy = remedy
