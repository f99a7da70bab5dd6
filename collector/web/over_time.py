"""One question over time: its rounds, all of them pooled, and the value to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from collector.records import Campaign
from collector.show.facts import ResultFacts, result_facts
from collector.show.interest import most_interesting
from collector.show.planning import floor, terms_of, warnings
from collector.show.selection import Latest, attribute_index, latest_results
from collector.show.tables import bin_ends
from collector.show.truth import read_truth
from collector.show.words import CAVEATS
from collector.store import Store
from collector.web.limits import LIMITS
from protocol_spec import Reporting, Result


class ChangeFacts(TypedDict):
    """From one round to another, as shares of 1; a window of rounds is named by its last."""

    from_round: int
    from_raw: float
    to_round: int
    to_raw: float


class InterestFacts(TypedDict):
    """The value to begin with: the largest change beyond chance, else the most frequent one."""

    value: str
    change: ChangeFacts | None


class OverTimeFacts(TypedDict):
    """One attribute's rounds, all of them pooled, and the floor that pooling cannot go below."""

    campaign: str
    attribute: str
    question: str
    values: list[str]
    sealed: int
    cut: bool
    rounds: list[ResultFacts]
    pooled: ResultFacts | None
    floor: list[float]
    truth: list[float] | None
    reporting: Reporting
    caveat: str
    numeric: bool
    warnings: list[str]
    interesting: InterestFacts | None
    unit: str
    bins: list[tuple[float | None, float | None]]


def over_time_results(
    store: Store,
    found: Campaign,
    attribute: str,
    last: int,
    until: int | None = None,
    most_rows: int = LIMITS.rows,
) -> Latest:
    """The pooled result and the latest sealed rounds of one attribute, as many as may be shown."""
    index = attribute_index(found, attribute)
    most = min(last, _most_rounds(found, index, most_rows))
    return latest_results(store, found, index, most, until)


def _most_rounds(found: Campaign, index: int, most_rows: int) -> int:
    """How many rounds fit into one answer."""
    return max(1, most_rows // len(found.manifest.attributes[index].values))


def over_time(
    store: Store,
    found: Campaign,
    directory: Path,
    attribute: str,
    latest: Latest,
    last: int,
    most_rows: int = LIMITS.rows,
) -> OverTimeFacts:
    """One attribute over its latest rounds, of which at most `last` were asked for."""
    index = attribute_index(found, attribute)
    last_sealed = store.last_sealed(found.id)
    sealed = 0 if last_sealed is None else last_sealed + 1
    pooled, rounds = latest
    asked, reporting = found.manifest.attributes[index], found.manifest.reporting
    return {
        "campaign": found.name,
        "attribute": attribute,
        "question": asked.question,
        "values": list(asked.values),
        "sealed": sealed,
        "cut": _most_rounds(found, index, most_rows) < min(last, sealed),
        "rounds": [result_facts(found, r, last_sealed) for r in rounds],
        "pooled": None if pooled is None else result_facts(found, pooled, last_sealed),
        "floor": [] if pooled is None else _floors(found, index, pooled),
        "truth": truth_of(directory, found, attribute),
        "reporting": reporting,
        "caveat": CAVEATS[reporting],
        "numeric": asked.edges is not None,
        "warnings": list(warnings(asked, reporting)),
        "interesting": _interesting(asked.values, rounds, pooled),
        "unit": asked.unit,
        "bins": [bin_ends(asked, i) for i in range(asked.k)],
    }


def _interesting(
    values: tuple[str, ...], rounds: Sequence[Result], pooled: Result | None
) -> InterestFacts | None:
    found = most_interesting(rounds, pooled)
    if found is None:
        return None
    if found.change is None:
        return {"value": values[found.place], "change": None}
    before, after = found.change
    change: ChangeFacts = {
        "from_round": before.round,
        "from_raw": before.raw,
        "to_round": after.round,
        "to_raw": after.raw,
    }
    return {"value": values[found.place], "change": change}


def _floors(found: Campaign, index: int, pooled: Result) -> list[float]:
    way, terms = found.manifest.ways[index], terms_of(found.manifest)
    heard = pooled.devices if pooled.n_eff is None else pooled.n_eff
    return [floor(way, terms, heard, f) for f in pooled.projected]


def truth_of(directory: Path, found: Campaign, attribute: str) -> list[float] | None:
    """The true frequencies, if the campaign is a simulation that knows them."""
    truth = (read_truth(directory, found.name) or {}).get(attribute)
    values = next(a.values for a in found.manifest.attributes if a.name == attribute)
    return truth if truth is not None and len(truth) == len(values) else None
