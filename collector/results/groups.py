"""Results by group of a public label: each group, how groups differ, and the fleet by known sizes.

Groups have no device in common, so that the errors of two are independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from collector.errors import UnknownCampaign
from collector.records import POOLED, Campaign
from collector.results.estimates import estimate_of
from collector.results.facts import attribute_indexes, result_facts, round_number
from collector.results.tables import COLUMNS as OF_RESULTS
from collector.results.tables import rows
from collector.results.trends import compare_results
from collector.results.words import Facts
from collector.store import Store
from protocol_spec import Groups, Result
from protocol_spec.estimation import post_stratified, series_of
from protocol_spec.programs.output import quoted
from protocol_spec.programs.settings import SettingsError

COLUMNS: Final = ("label", "group", *OF_RESULTS)
WITHHELD: Final = (
    "Withheld: too few devices, or another group of too few would show by subtracting."
)


def by_group(
    store: Store,
    found: Campaign,
    attribute: str | None,
    number: str,
    label: str,
    totals: Mapping[str, float] | None = None,
) -> list[Facts]:
    """For each question the results of its groups in a round, or of all rounds together."""
    groups, key, indexes = _wanted(store, found, attribute, number, label)
    return [_of_attribute(store, found, index, groups, key, totals) for index in indexes]


def group_rows(
    store: Store, found: Campaign, attribute: str | None, number: str, label: str
) -> Iterator[Facts]:
    """The same as rows of `export`, with label and group in front."""
    groups, key, indexes = _wanted(store, found, attribute, number, label)
    for index in indexes:
        for group, result in _known(store, found, index, groups, key).items():
            for row in rows(found, [result]):
                yield {"label": label, "group": group, **row}


def _wanted(
    store: Store, found: Campaign, attribute: str | None, number: str, label: str
) -> tuple[Groups, int, Sequence[int]]:
    """The groups, the round as results are stored under, and the attributes."""
    groups = found.manifest.groups
    if groups is None or groups.label != label:
        known = "has no groups" if groups is None else f"has groups by {quoted(groups.label)} alone"
        raise UnknownCampaign(f"{found.name} {known}: its manifest names them, before it begins")
    if number == "all":
        raise UnknownCampaign("groups of all rounds are not shown at once; name one, or pooled")
    key = POOLED if number == "pooled" else round_number(store, found, number)
    return groups, key, attribute_indexes(found, attribute)


def _known(
    store: Store, found: Campaign, index: int, groups: Groups, key: int
) -> dict[str, Result]:
    """Results of the groups that are not withheld."""
    cells = zip(groups.names, found.cells(index))
    return {name: r for name, cell in cells for r in store.group_results(found.id, cell, key)}


def _of_attribute(
    store: Store,
    found: Campaign,
    index: int,
    groups: Groups,
    key: int,
    totals: Mapping[str, float] | None,
) -> Facts:
    known = _known(store, found, index, groups, key)
    asked, last = found.manifest.attributes[index], store.last_sealed(found.id)
    withheld = {"withheld": True, "sentence": WITHHELD}
    return {
        "campaign": found.name,
        "attribute": asked.name,
        "question": asked.question,
        "label": groups.label,
        "groups": [
            {"group": name}
            | (result_facts(found, known[name], last) if name in known else withheld)
            for name in groups.names
        ],
        "differences": list(_differences(found, known)),
        "fleet": None if totals is None else _fleet(found, index, known, totals),
    }


def _differences(found: Campaign, known: Mapping[str, Result]) -> Iterator[Facts]:
    """Every pair; the larger group first where it was named first."""
    for (a, first), (b, second) in combinations(known.items(), 2):
        yield compare_results((found, first), (found, second), (a, b))


def _fleet(
    found: Campaign, index: int, known: Mapping[str, Result], totals: Mapping[str, float]
) -> Facts:
    """All devices, each group weighed by how many devices it is known to have."""
    groups = found.manifest.groups
    for name, devices in totals.items():
        if groups is None or name not in groups.names:
            raise SettingsError(f"--totals {name}: there is no such group")
        if devices > 0 and name not in known:
            raise SettingsError(
                f"--totals {name}: this group has no result, so that all devices cannot be "
                "weighed; leave it out for the others together"
            )
    chosen = {name: devices for name, devices in totals.items() if devices > 0}
    parts = [estimate_of(found.manifest, known[name]) for name in chosen]
    made = post_stratified(parts, list(chosen.values()))
    values = found.manifest.attributes[index].values
    columns = {"value": values, **series_of(made)}
    names = ("value", "raw", "projected", "low", "high", "low_all", "high_all")
    bars = zip(*(columns[name] for name in names))
    return {"totals": dict(totals), "histogram": [dict(zip(names, bar)) for bar in bars]}
