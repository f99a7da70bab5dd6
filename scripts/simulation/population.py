"""What the devices of a simulated fleet hold and how they behave; the paper's four data sets."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
    """`counts[a][v]` of all the devices hold value v of attribute a, asked for it or not. Where
    records are known, `records[i, a]` are the values that one device holds together."""

    devices: int
    counts: tuple[Counts, ...]
    records: Counts | None = None

    def drawn(self, seed: int) -> tuple[Counts, ...]:
        """Who holds what among the devices that drew each attribute; the same for every depth."""
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
        d = len(self.counts)
        sizes = rng.multinomial(self.devices, np.full(d, 1.0 / d))
        return tuple(sample_groups(rng, self.counts, sizes))

    def holdings(self, seed: int) -> Counts:
        """`[device, a]`: what each device holds of every attribute; independent without records."""
        if self.records is not None:
            return self.records
        columns = []
        for index, counts in enumerate(self.counts):
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(5, index)))
            columns.append(rng.permutation(np.repeat(np.arange(counts.size), counts)))
        return np.stack(columns, axis=1)


def drifting(start: Weights, target: Weights, number: int, rounds: int) -> Weights:
    """Shares in a round: from the start to the target half-way, and back at the end."""
    share = (1.0 - np.cos(2.0 * np.pi * number / rounds)) / 2.0
    between: Weights = (1.0 - share) * start + share * target
    return between


def targets(manifest: Manifest, words: Sequence[str], seed: int) -> tuple[Weights, ...]:
    """The shares that the words of --drift describe, for each attribute."""
    found = _all_weights(manifest, words, seed, "--drift")
    return tuple(np.asarray(w / w.sum(), dtype=np.float64) for w in found)


def populate(
    manifest: Manifest, words: Sequence[str], devices: int | None, seed: int
) -> Population:
    """The population that the words describe: one for all attributes, or `attribute=word` each.

    Without `devices` there are as many as a data set or file counts.
    """
    if devices is not None and not 1 <= devices <= MAX_DEVICES:
        raise SimulationError(f"--devices {devices}: must lie between 1 and {MAX_DEVICES:,}")
    if len(words) == 1 and "=" not in words[0] and Path(words[0]).suffix in FILES:
        columns = read_table(Path(words[0]))
        if not _is_counts(columns):
            return from_records(manifest, columns, devices, seed)
    weights = _all_weights(manifest, words, seed, "--population")
    if devices is None:
        totals = {float(w.sum()) for w in weights}
        if len(totals) != 1 or not totals.pop() > 1.5:
            raise SimulationError(
                "the population does not say how many devices there are; add --devices"
            )
        devices = round(float(weights[0].sum()))
    return Population(devices, tuple(apportion(w, devices) for w in weights))


def from_records(
    manifest: Manifest, records: Any, devices: int | None = None, seed: int = 1
) -> Population:
    """A device for each record: a DataFrame, or columns by name. A value that the manifest does not
    have counts as its value for everything else, as on a device. With `devices`, records are
    repeated as often as they fit, and the rest is drawn among them."""
    places = np.stack([_places(records, a) for a in manifest.attributes], axis=1)
    if devices is not None:
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(6,)))
        rest = rng.permutation(len(places))[: devices % len(places)]
        places = np.concatenate([np.tile(places, (devices // len(places), 1)), places[rest]])
    counts = (np.bincount(places[:, i], minlength=a.k) for i, a in enumerate(manifest.attributes))
    return Population(len(places), tuple(c.astype(np.int64) for c in counts), places)


def _places(records: Any, attribute: Attribute) -> Counts:
    """The values that records hold of one attribute, by their place in it."""
    if attribute.cross:
        rows, columns = (_places(records, part) for part in attribute.cross)
        return rows * attribute.cross[1].k + columns
    if attribute.name not in records:
        known = ", ".join(map(str, records)) or "none"
        raise SimulationError(
            f"the records have no column {attribute.name!r}; their columns are {known}"
        )
    found = [attribute.index_of(value) for value in records[attribute.name]]
    if not found:
        raise SimulationError("there are no records; a population needs at least one device")
    return np.asarray(found, dtype=np.int64)


def _all_weights(manifest: Manifest, words: Sequence[str], seed: int, option: str) -> list[Weights]:
    """One for each attribute; the two of a pair are independent."""
    weights: list[Weights] = []
    asked = [part for attribute in manifest.attributes for part in attribute.parts]
    alone = len(asked) == 1
    for index, attribute in enumerate(asked):
        named = [w.partition("=")[2] for w in words if w.startswith(f"{attribute.name}=")]
        common = [w for w in words if "=" not in w]
        if len(named) > 1 or len(common) > 1:
            raise SimulationError(f"{option}: more than one distribution for {attribute.name}")
        if not named and not common:
            raise SimulationError(
                f"{option}: no distribution for {attribute.name}; add "
                f"{attribute.name}=uniform, or one for all attributes"
            )
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, index)))
        try:
            weights.append(_weights((named or common)[0], attribute, rng, alone))
        except SimulationError as error:
            raise SimulationError(f"{option} {error}") from None
    parts = iter(weights)
    return [_together([next(parts) for _ in each.parts]) for each in manifest.attributes]


def _together(parts: Sequence[Weights]) -> Weights:
    if len(parts) == 1:
        return parts[0]
    rows, columns = parts
    return np.asarray(np.outer(rows, columns / columns.sum()).ravel(), dtype=np.float64)


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
    if Path(word).suffix in FILES:
        columns = read_table(Path(word))
        if not _is_counts(columns):
            return np.bincount(_places(columns, attribute), minlength=attribute.k).astype(float)
        return _matched(word, _counts_in(word, columns, attribute.name if alone else ""), attribute)
    known = ", ".join((*KINDS, *NAMES))
    raise SimulationError(f"{word!r} is unknown; choose one of {known}, a .csv or a .json file")


def _distribution(kind: str, text: str, attribute: Attribute, rng: np.random.Generator) -> Weights:
    """Weights that add up to 1; value 0 is the most common of a falling distribution. Nobody holds
    the value that a manifest adds for what is none of its own."""
    default = KINDS[kind]
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if (default is None) != (number is None) or not (number is None or 0.0 < number < np.inf):
        raise SimulationError(f"{kind}:{text}: needs a positive number, or none")
    if kind == "geometric" and number is not None and number >= 1.0:
        raise SimulationError(f"{kind}:{text}: the number must be below 1")
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


FILES: Final = (".csv", ".json")
_SHAPE: Final = (
    "a row for each device and a column for each attribute, or the columns attribute (not needed "
    "for one attribute), value and count"
)


def read_table(path: Path) -> dict[str, list[Any]]:
    """A file's columns: of records, or of counts."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(text.splitlines()))
        if path.suffix == ".json":
            document = json.loads(text)
            rows = document if isinstance(document, list) else list(_as_counts(document))
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}
    except OSError as error:
        raise SimulationError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, TypeError):
        raise SimulationError(f"{path} is no table; it must have {_SHAPE}") from None


def _as_counts(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """{"attribute": {"value": count}}, or {"value": count} for one attribute."""
    for name, held in document.items():
        if isinstance(held, dict):
            yield from ({"attribute": name, "value": v, "count": n} for v, n in held.items())
        else:
            yield {"value": name, "count": held}


def _is_counts(columns: Mapping[str, Any]) -> bool:
    return {"value", "count"} <= columns.keys() <= {"attribute", "value", "count"}


def _counts_in(
    word: str, columns: Mapping[str, Sequence[Any]], alone: str
) -> dict[str, dict[str, Any]]:
    """Counts by attribute and value; a file about one attribute need not name it."""
    found: dict[str, dict[str, Any]] = {}
    names = columns.get("attribute") or [alone] * len(columns["value"])
    for name, value, number in zip(names, columns["value"], columns["count"]):
        try:
            count = int(number) if isinstance(number, str) else number
        except ValueError:
            raise SimulationError(f"{word}: {number!r} is not a number of devices") from None
        found.setdefault(name or alone, {})[value] = count
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
