"""What a plan says. The names are what `plan --json` prints; one is only ever added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from protocol_spec import ChooseFor, Reporting

POOLED_ROUNDS: Final = (1, 7, 30, 365)
COMPARED_ROUNDS: Final = (1, 7, 28)

Grade = Literal["withheld", "nothing", "coarse", "good"]
Change = Literal["devices", "eps", "rounds", "values", "reporting"]


@dataclass(frozen=True, slots=True)
class WayPlan:
    """One way of reporting, for the same question and eps_inf; widths by number of rounds."""

    reporting: Reporting
    protocol: str
    chosen: bool
    suits: bool
    eps_1: float
    half_width: dict[int, float]
    lifetime_epsilon: float
    hides: str


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """ALLOMFREE's choice if it is made for this reading."""

    choose_for: ChooseFor
    protocol: str
    half_width: float
    half_width_pooled: float


@dataclass(frozen=True, slots=True)
class NumbersPlan:
    """What to expect of a numeric question, if its numbers were spread evenly over the bins."""

    rounds: int
    mean_half_width: float | None
    mean_bias: float | None
    median_low: float | None
    median_high: float | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a result of so many rounds would show; `difference` is between two such values."""

    rounds: int
    reports: float
    half_width: float
    difference: float
    grade: Grade
    sentence: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that would bring the half-width down to the target, if nothing else changed."""

    change: Change
    value: float | str
    half_width: float
    sentence: str


@dataclass(frozen=True, slots=True)
class AttributePlan:
    """What to expect of one attribute, as half-widths of 95 % intervals near frequency f."""

    name: str
    k: int
    protocol: str
    why: str
    devices: int
    half_width: float
    half_width_all: float
    half_width_pooled: dict[int, float]
    floor: float
    devices_for_precision: int | None
    split_budget_ratio: float | None
    reporting: Reporting
    changes: bool
    difference: float
    difference_all: float
    verdict: tuple[Judgement, ...]
    target: float
    suggestions: tuple[Suggestion, ...]
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    ways: tuple[WayPlan, ...]
    choices: tuple[ChoicePlan, ...]
    unit: str
    numbers: tuple[NumbersPlan, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole campaign."""

    n: int
    f: float
    precision: float | None
    eps_inf: float
    eps_1: float
    receipt_pages: int
    attributes: tuple[AttributePlan, ...]
    reporting: Reporting
    rounds: int
    each: int
    lifetime_epsilon: float
    min_reports: int
    receipts_warning: str | None = None
