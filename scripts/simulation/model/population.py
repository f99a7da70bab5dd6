"""What the devices of a simulated fleet hold: from a word such as `zipf:1.2` to whole numbers.

A population is a number of devices and, for every attribute of a campaign, how many of them hold
each value. Each device draws one attribute for life, uniformly, as a real one does; what it holds
of one attribute is taken to tell nothing of another.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protocol_spec import NOT_KNOWN, Attribute, Manifest
from simulation.errors import SimulationError
from simulation.model import datasets
from simulation.model.counts import Counts, groups

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
        return tuple(groups(rng, self.counts, rng.multinomial(self.devices, np.full(d, 1.0 / d))))


def drifting(start: Weights, target: Weights, number: int, rounds: int) -> Weights:
    """Shares in a round, on the way from the start to the target half-way and back at the end."""
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
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, index)))
        weights.append(_weights(_word_for(attribute, words), attribute, rng, alone))
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


def _word_for(attribute: Attribute, words: Sequence[str]) -> str:
    named = [w.partition("=")[2] for w in words if w.startswith(f"{attribute.name}=")]
    common = [w for w in words if "=" not in w]
    if len(named) > 1 or len(common) > 1:
        raise SimulationError(f"--population: more than one distribution for {attribute.name}")
    if not named and not common:
        raise SimulationError(
            f"--population: no distribution for {attribute.name}; add "
            f"{attribute.name}=uniform, or one for all attributes"
        )
    return (named or common)[0]


def _weights(word: str, attribute: Attribute, rng: np.random.Generator, alone: bool) -> Weights:
    kind, _, number = word.partition(":")
    if kind in KINDS:
        return _law(kind, _parameter(kind, number), attribute, rng)
    if word in datasets.NAMES:
        table: Mapping[str, Mapping[str, Any]] = {
            attribute_name(m.name): dict(zip(m.values, m.counts))
            for m in datasets.load(word).attributes
        }
        return _matched(word, table, attribute)
    if Path(word).suffix in (".csv", ".json"):
        return _matched(word, _read(Path(word), attribute.name if alone else None), attribute)
    known = ", ".join((*KINDS, *datasets.NAMES))
    raise SimulationError(
        f"--population {word!r} is unknown; choose one of {known}, a .csv or a .json file"
    )


def _parameter(kind: str, number: str) -> float | None:
    default = KINDS[kind]
    try:
        value = float(number) if number else default
    except ValueError:
        value = -1.0
    if (default is None) != (value is None) or not (value is None or 0.0 < value < np.inf):
        raise SimulationError(f"--population {kind}:{number}: needs a positive number, or none")
    if kind == "geometric" and value is not None and value >= 1.0:
        raise SimulationError(f"--population {kind}:{number}: the number must be below 1")
    return value


def _law(
    kind: str, number: float | None, attribute: Attribute, rng: np.random.Generator
) -> Weights:
    """Weights that add up to 1; value 0 is the most common of a falling law.

    Nobody holds the value that a manifest adds for what is none of its own.
    """
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
    try:
        text = path.read_text(encoding="utf-8")
        found = _from_json(text, alone) if path.suffix == ".json" else _from_csv(text, alone)
    except OSError as error:
        raise SimulationError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        shape = (
            '{"attribute": {"value": count}} or {"value": count}'
            if path.suffix == ".json"
            else "the columns attribute (not needed for one attribute), value and count"
        )
        raise SimulationError(f"{path} does not hold counts; it must have {shape}") from None
    return found


def _from_json(text: str, alone: str | None) -> dict[str, dict[str, Any]]:
    document = json.loads(text)
    if alone is not None and all(isinstance(count, int) for count in document.values()):
        return {alone: document}
    return {name: dict(held.items()) for name, held in document.items()}


def _from_csv(text: str, alone: str | None) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(text.splitlines()):
        name = row.get("attribute") or alone or ""
        found.setdefault(name, {})[row["value"]] = int(row["count"])
    return found
