"""What the devices of a simulated fleet hold and how they behave; the paper's four data sets."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protocol_spec import NOT_KNOWN, AllomfreeError, Attribute, Manifest
from protocol_spec.mechanisms import DEFAULT_MECHANISM, MECHANISMS, Reporting
from simulation.counts import Counts, sample_groups


class SimulationError(AllomfreeError, ValueError):
    """A population, an option or a stored run that cannot be used. Nothing was simulated; commands
    show the message alone and exit with 2."""

    exit_code = 2


DATA: Final = Path(__file__).with_name("data")
NAMES: Final = ("nursery", "adult", "ms_fimu", "census_income")


@dataclass(frozen=True, slots=True)
class Marginal:
    """The number of rows that hold each value of one attribute."""

    name: str
    values: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def k(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Dataset:
    """One data set: n rows, and the counts of every attribute, each adding up to n."""

    name: str
    title: str
    note: str
    n: int
    attributes: tuple[Marginal, ...]


@cache
def load(name: str) -> Dataset:
    if name not in NAMES:
        raise LookupError(f"there is no data set {name!r}; known are {', '.join(NAMES)}")
    document = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    marginals = tuple(
        Marginal(a["name"], tuple(a["values"]), tuple(a["counts"])) for a in document["attributes"]
    )
    return Dataset(name, document["title"], document["note"], document["n"], marginals)


# --- what devices hold: from a word such as `zipf:1.2` to whole numbers --------------------------

MAX_DEVICES: Final = 999_999_999  # the largest urn that numpy draws from
KINDS: Final = {"uniform": None, "zipf": 1.0, "dirichlet": 1.0, "geometric": 0.5}

Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """`counts[a][v]` of all the devices hold value v of attribute a, asked for it or not."""

    devices: int
    counts: tuple[Counts, ...]

    def drawn(self, seed: int) -> tuple[Counts, ...]:
        """Who holds what among the devices that drew each attribute; the same for every depth."""
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
        d = len(self.counts)
        sizes = rng.multinomial(self.devices, np.full(d, 1.0 / d))
        return tuple(sample_groups(rng, self.counts, sizes))


def drifting(start: Weights, target: Weights, number: int, rounds: int) -> Weights:
    """Shares in a round: from the start to the target half-way, and back at the end."""
    share = (1.0 - np.cos(2.0 * np.pi * number / rounds)) / 2.0
    between: Weights = (1.0 - share) * start + share * target
    return between


def targets(manifest: Manifest, words: Sequence[str], seed: int) -> tuple[Weights, ...]:
    """The shares that the words describe, for each attribute."""
    found = _all_weights(manifest, words, seed)
    return tuple(np.asarray(w / w.sum(), dtype=np.float64) for w in found)


def populate(
    manifest: Manifest, words: Sequence[str], devices: int | None, seed: int
) -> Population:
    """The population that the words describe: one for all attributes, or `attribute=word` each.

    Without `devices` there are as many as a data set or file counts.
    """
    weights = _all_weights(manifest, words, seed)
    if devices is None:
        totals = {float(w.sum()) for w in weights}
        if len(totals) != 1 or not totals.pop() > 1.5:
            raise SimulationError(
                "the population does not say how many devices there are; add --devices"
            )
        devices = round(float(weights[0].sum()))
    if not 1 <= devices <= MAX_DEVICES:
        raise SimulationError(f"--devices {devices}: must lie between 1 and {MAX_DEVICES:,}")
    return Population(devices, tuple(apportion(w, devices) for w in weights))


def _all_weights(manifest: Manifest, words: Sequence[str], seed: int) -> list[Weights]:
    weights: list[Weights] = []
    alone = len(manifest.attributes) == 1
    for index, attribute in enumerate(manifest.attributes):
        named = [w.partition("=")[2] for w in words if w.startswith(f"{attribute.name}=")]
        common = [w for w in words if "=" not in w]
        if len(named) > 1 or len(common) > 1:
            raise SimulationError(f"--population: more than one distribution for {attribute.name}")
        if not named and not common:
            raise SimulationError(
                f"--population: no distribution for {attribute.name}; add "
                f"{attribute.name}=uniform, or one for all attributes"
            )
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, index)))
        weights.append(_weights((named or common)[0], attribute, rng, alone))
    return weights


def apportion(weights: Weights, devices: int) -> Counts:
    """Whole numbers that add up to `devices`, each within one of its share."""
    shares = weights / weights.sum() * devices
    counts: Counts = np.floor(shares).astype(np.int64)
    missing = devices - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts


def attribute_name(name: str) -> str:
    """A data set's attribute as a manifest may spell it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32].strip("-")


def _weights(word: str, attribute: Attribute, rng: np.random.Generator, alone: bool) -> Weights:
    kind, _, number = word.partition(":")
    if kind in KINDS:
        return _distribution(kind, number, attribute, rng)
    if word in NAMES:
        marginals = load(word).attributes
        table = {attribute_name(m.name): dict(zip(m.values, m.counts)) for m in marginals}
        return _matched(word, table, attribute)
    if Path(word).suffix in (".csv", ".json"):
        return _matched(word, _read(Path(word), attribute.name if alone else None), attribute)
    known = ", ".join((*KINDS, *NAMES))
    raise SimulationError(
        f"--population {word!r} is unknown; choose one of {known}, a .csv or a .json file"
    )


def _distribution(kind: str, text: str, attribute: Attribute, rng: np.random.Generator) -> Weights:
    """Weights that add up to 1; value 0 is the most common of a falling distribution. Nobody holds
    the value that a manifest adds for what is none of its own."""
    default = KINDS[kind]
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if (default is None) != (number is None) or not (number is None or 0.0 < number < np.inf):
        raise SimulationError(f"--population {kind}:{text}: needs a positive number, or none")
    if kind == "geometric" and number is not None and number >= 1.0:
        raise SimulationError(f"--population {kind}:{text}: the number must be below 1")
    added = attribute.values[-1] == NOT_KNOWN
    k = attribute.k - added
    places = np.arange(k, dtype=np.float64)
    if number is None:
        weights = np.ones(k)
    elif kind == "zipf":
        weights = (places + 1.0) ** -number
    elif kind == "geometric":
        weights = (1.0 - number) ** places
    else:
        weights = rng.dirichlet(np.full(k, number))
    return np.append(weights / weights.sum(), np.zeros(int(added)))


def _matched(word: str, table: Mapping[str, Mapping[str, Any]], attribute: Attribute) -> Weights:
    """The counts of one attribute in the manifest's order of values."""
    held = table.get(attribute.name)
    if held is None:
        raise SimulationError(
            f"{word} has no attribute {attribute.name!r}; it has {', '.join(table) or 'none'}"
        )
    strangers = [value for value in held if value not in attribute.values]
    if strangers:
        raise SimulationError(
            f"{word} counts {strangers[0]!r} of {attribute.name}, which is not in the manifest; "
            f"its values there are {', '.join(map(repr, attribute.values))}"
        )
    counts = [held.get(value, 0) for value in attribute.values]
    sound = all(isinstance(c, int) and not isinstance(c, bool) and c >= 0 for c in counts)
    if not sound or sum(counts) < 1:
        raise SimulationError(
            f"{word}: the counts of {attribute.name} must be whole numbers, not all 0"
        )
    return np.asarray(counts, dtype=np.float64)


def _read(path: Path, alone: str | None) -> dict[str, dict[str, Any]]:
    """Counts by attribute and value; a file about one attribute need not name it."""
    in_json = path.suffix == ".json"
    found: dict[str, dict[str, Any]] = {}
    try:
        text = path.read_text(encoding="utf-8")
        if in_json:
            document = json.loads(text)
            if alone is not None and all(isinstance(count, int) for count in document.values()):
                return {alone: document}
            return {name: dict(held.items()) for name, held in document.items()}
        for row in csv.DictReader(text.splitlines()):
            name = row.get("attribute") or alone or ""
            found.setdefault(name, {})[row["value"]] = int(row["count"])
    except OSError as error:
        raise SimulationError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        shape = "the columns attribute (not needed for one attribute), value and count"
        if in_json:
            shape = '{"attribute": {"value": count}} or {"value": count}'
        raise SimulationError(f"{path} does not hold counts; it must have {shape}") from None
    return found


# --- how devices behave --------------------------------------------------------------------------

YEAR_SECONDS: Final = 365.25 * 86400


@dataclass(frozen=True, slots=True)
class Behaviour:
    """All rates are probabilities per device and round.

    dropout      to miss a round; by value where `dropout_by_value[attribute][value]` says so
    churn        to be replaced, between rounds, by a new device that holds the same value
    changes      to hold another value, drawn from the population, from this round on
    late         to report only after the round was sealed
    duplicates   to send a report twice
    dishonest    n devices of an attribute always support one value: (attribute, n, value)
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
        """The probability to miss a round, by value held."""
        rates = np.full(k, self.dropout)
        for value, rate in self.dropout_by_value.get(attribute, {}).items():
            rates[value] = rate
        return rates

    def liars(self, attribute: int, devices: int) -> tuple[int, int]:
        """The number of dishonest devices of an attribute, and the value they support."""
        for which, number, value in self.dishonest:
            if which == attribute:
                return min(number, devices), value
        return 0, 0

    def facts(self) -> dict[str, Any]:
        """What differs from perfect behaviour, for the record of a run."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in found.items() if value}


def change_probability(per_year: float, period_seconds: int) -> float:
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
    """Index of attribute and value; `name` is `attribute:value` where several have the value."""
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


def for_dataset(
    name: str,
    *,
    eps_inf: float,
    eps_1: float,
    rounds: int = 365,
    reporting: Reporting = DEFAULT_MECHANISM,
) -> str:
    """TOML that asks for every attribute of a data set.

    Where devices draw their rounds, eps_1 follows from eps_inf and is not written.
    """
    data = load(name)
    budget = f"eps_inf = {eps_inf!r}\n"
    if not MECHANISMS[reporting].rules.draws_rounds:
        budget += f"eps_1 = {eps_1!r}\n"
    head = f"""\
# Made for the data set {data.title}. {data.note}
format = 1
reporting = "{reporting}"
slug = "{name.replace("_", "-")}"
title = "{data.title}"
purpose = "Simulate a fleet that holds the data set {data.title}"
owner = "The simulation"
contact = "nobody@example.org"
{budget}min_reports = 50
receipt_pages = {max(1, data.n // 1000)}

[rounds]
first = 2027-01-01T00:00:00Z
period = "1d"
count = {rounds}
"""
    parts = [head]
    for marginal in data.attributes:
        values = json.dumps(marginal.values, ensure_ascii=False)
        last = json.dumps(marginal.values[-1], ensure_ascii=False)
        parts.append(f"""
[[attributes]]
name = "{attribute_name(marginal.name)}"
question = "What is the {marginal.name}?"
values = {values}
otherwise = {last}
""")
    return "".join(parts)
