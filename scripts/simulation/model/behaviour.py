"""How the devices of a simulated fleet behave, apart from what they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol_spec import Manifest
from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True)
class Behaviour:
    """All rates are probabilities per device and round.

    dropout      to miss a round; by value where `dropout_by_value[attribute][value]` says so
    churn        to be replaced, between rounds, by a new device that holds the same value
    changes      to hold another value, drawn anew from the population, from this round on
    late         to report only after the round was sealed
    duplicates   to send a report twice
    dishonest    so many devices of an attribute support one value always: (attribute, n, value)
    """

    dropout: float = 0.0
    dropout_by_value: dict[int, dict[int, float]] = field(default_factory=dict)
    churn: float = 0.0
    changes: float = 0.0
    late: float = 0.0
    duplicates: float = 0.0
    dishonest: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("dropout", "churn", "changes", "late", "duplicates"):
            _check_rate(f"--{name}", getattr(self, name))

    def missing(self, attribute: int, k: int) -> npt.NDArray[np.float64]:
        """The chance to miss a round, by value held."""
        rates = np.full(k, self.dropout)
        for value, rate in self.dropout_by_value.get(attribute, {}).items():
            rates[value] = rate
        return rates

    def liars(self, attribute: int, devices: int) -> tuple[int, int]:
        """How many devices of an attribute are dishonest, and the value they support."""
        for which, number, value in self.dishonest:
            if which == attribute:
                return min(number, devices), value
        return 0, 0

    def facts(self) -> dict[str, Any]:
        """What differs from perfect behaviour, for the record of a run."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in found.items() if value}


YEAR_SECONDS = 365.25 * 86400


def chance_of_change(per_year: float, period_seconds: int) -> float:
    """Of at least one change in a round, for changes at random at that mean rate."""
    if not 0.0 <= per_year < math.inf:
        raise SimulationError(f"--changes-per-year {per_year}: must be a number, 0 or more")
    return -math.expm1(-per_year * period_seconds / YEAR_SECONDS)


def liars_before(place: int, devices: int, liars: int) -> int:
    """Dishonest devices among the first `place`: they are spread evenly over the fleet."""
    return (place - 1) * liars // devices + 1 if place and liars else 0


def by_value(manifest: Manifest, texts: Sequence[str]) -> dict[int, dict[int, float]]:
    """Drop-out rates from texts such as `gas=0.3` or `fuel:gas=0.3`."""
    rates: dict[int, dict[int, float]] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        attribute, value = find_value(manifest, name if equals else text)
        rates.setdefault(attribute, {})[value] = _check_rate(f"--dropout-by-value {text}", number)
    return rates


def dishonest(manifest: Manifest, texts: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """Dishonest devices from texts such as `50:gas` or `50:fuel:gas`."""
    found: dict[int, tuple[int, int, int]] = {}
    for text in texts:
        number, _, name = text.partition(":")
        if not number.isdecimal() or not name:
            raise SimulationError(f"--dishonest {text}: write a number, a colon and a value")
        attribute, value = find_value(manifest, name)
        if attribute in found:
            raise SimulationError(f"--dishonest {text}: one value for each attribute, not two")
        found[attribute] = (attribute, int(number), value)
    return tuple(found.values())


def find_value(manifest: Manifest, name: str) -> tuple[int, int]:
    """Where a value stands: (attribute, value); `attribute:value` where several have it."""
    found = [
        (a, v)
        for a, attribute in enumerate(manifest.attributes)
        for v, value in enumerate(attribute.values)
        if name in (value, f"{attribute.name}:{value}")
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise SimulationError(f"{name!r} is a value of several attributes; write attribute:value")
    raise SimulationError(f"{name!r} is not a value of any attribute in the manifest")


def _check_rate(what: str, number: str | float) -> float:
    try:
        rate = float(number)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        raise SimulationError(f"{what} {number}: must be a probability between 0 and 1")
    return rate
