"""Everything that can be refused, in one tree.

AllomfreeError
├── ParameterError (ValueError)     a number the mathematics cannot use; the caller fixes it
│   └── InfeasibleBudget            the protocol cannot reach that eps_1; carries the largest it can
├── ManifestError (ValueError)      a campaign's manifest is not acceptable; its author fixes it
└── UnknownValue (ValueError)       a device's value is outside the domain; its owner fixes it

A bad message from the network is not an exception but data: see `protocol_spec.outcomes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol_spec.shown import as_toml, quoted, shown

__all__ = [
    "AllomfreeError",
    "InfeasibleBudget",
    "ManifestError",
    "ParameterError",
    "Problem",
    "UnknownValue",
]


MOST_SHOWN = 12  # problems of one manifest in a message; its author mends these and sees the rest


class AllomfreeError(Exception):
    """Base of every error that a caller or a user can do something about."""


class ParameterError(AllomfreeError, ValueError):
    """A parameter is outside the range for which the protocol is defined."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {quoted(value, 160)}: {remedy}")
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
    """One thing wrong with a manifest: where, what was found, and what would be right.

    The value is None where nothing was found.
    """

    field: str
    value: object
    remedy: str

    def __str__(self) -> str:
        found = "" if self.value is None else f" = {as_toml(self.value, 160)}"
        return f"{shown(self.field, 80)}{found}: {shown(self.remedy, 400)}"


class ManifestError(AllomfreeError, ValueError):
    """A manifest is refused; `problems` lists every reason found, not only the first.

    `file` is where it was read from, if it was a file.
    """

    def __init__(self, problems: Sequence[Problem], file: str = "") -> None:
        where = f"{shown(file)}: " if file else ""
        first = [f"{where}{problem}" for problem in problems[:MOST_SHOWN]]
        more = len(problems) - len(first)
        super().__init__("\n".join([*first, *([f"and {more:,} more problems"] if more else [])]))
        self.problems = tuple(problems)


class UnknownValue(AllomfreeError, ValueError):
    """A value is not one of the attribute's. The value itself is private and never shown."""

    def __init__(self, attribute: str, remedy: str) -> None:
        super().__init__(f"attribute {quoted(attribute)}: {remedy}")
        self.attribute = attribute
        self.remedy = remedy
