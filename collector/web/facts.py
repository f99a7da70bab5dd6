"""What each page shows, as plain facts: the templates, `.json` and `.csv` say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from collector.records import Campaign
from collector.show.facts import (
    Facts,
    attribute_index,
    campaign_status,
    instant,
    latest_results,
    result_facts,
)
from collector.show.planning import floor, why
from collector.show.truth import read_truth
from collector.store import Store
from protocol_spec import Result, largest_shift, lifetime_odds, report_odds

MOST_ROWS: Final = 50_000  # of an attribute's values and rounds in one answer, for its memory

ROUND_COLUMNS: Final = (
    "campaign",
    "round",
    "attribute",
    "state",
    "opens",
    "closes",
    "deadline",
    "received",
    "expected",
)
CAMPAIGN_COLUMNS: Final = (
    "campaign",
    "title",
    "open",
    "round",
    "rounds",
    "sealed",
    "next_seal",
    "accepted",
    "refused",
)


def home_rows(facts: Facts) -> list[Facts]:
    """One row a campaign."""
    rows = []
    for c in facts["campaigns"]:
        accepted = c["outcomes"].get("accepted", 0)
        counts = {"accepted": accepted, "refused": sum(c["outcomes"].values()) - accepted}
        rows.append({name: {**c, **counts}[name] for name in CAMPAIGN_COLUMNS})
    return rows


def campaign(store: Store, found: Campaign, directory: Path, now: float, last: int) -> Facts:
    """A campaign: what is asked, with how much noise and why, and how its rounds fill."""
    manifest, schedule = found.manifest, found.manifest.rounds
    return {
        **campaign_status(store, found, now),
        "purpose": manifest.purpose,
        "owner": manifest.owner,
        "contact": manifest.contact,
        "digest": manifest.digest.hex(),
        "eps_inf": manifest.eps_inf,
        "eps_1": manifest.eps_1,
        "belief_one_report": largest_shift(manifest.eps_1),
        "belief_all_reports": largest_shift(manifest.eps_inf),
        "min_reports": manifest.min_reports,
        "max_values": manifest.max_values,
        "first": instant(schedule.first),
        "period_seconds": schedule.period,
        "grace_seconds": schedule.grace,
        "expires": instant(manifest.expires),
        "simulation": read_truth(directory, found.name) is not None,
        "attributes": [_attribute(found, i) for i in range(len(manifest.attributes))],
        "latest_rounds": _rounds(store, found, now, last),
    }


def _attribute(found: Campaign, index: int) -> Facts:
    attribute, drawn = found.manifest.attributes[index], found.manifest.calibrations[index]
    example = attribute.values[0]
    kept = "the one answer a device keeps for all its reports"
    return {
        "name": attribute.name,
        "question": attribute.question,
        "values": list(attribute.values),
        "protocol": drawn.protocol,
        "why": why(attribute, found.manifest.eps_inf, found.manifest.eps_1),
        "one_report": report_odds(drawn).sentence(example),
        "all_reports": lifetime_odds(drawn).sentence(example, subject=kept),
    }


def _rounds(store: Store, found: Campaign, now: float, last: int) -> list[Facts]:
    """The latest rounds, newest first. Expected is what the fullest of the rounds before brought:
    a device reports in every round."""
    schedule, names = found.manifest.rounds, [a.name for a in found.manifest.attributes]
    sealed = store.last_sealed(found.id)
    begun = -1 if now < schedule.first else (int(now) - schedule.first) // schedule.period
    filled = [-1 if sealed is None else sealed, *store.open_rounds(found.id)]
    newest = max(min(begun, schedule.count - 1), *filled)
    expected: dict[str, int | None] = dict.fromkeys(names)
    rows = []
    for number in range(max(0, newest + 1 - 2 * last), newest + 1):
        tallies = store.tallies(found.id, number)
        reports = {name: tallies[i].n if i in tallies else 0 for i, name in enumerate(names)}
        rows.append(
            {
                "round": number,
                "state": _state(found, number, sealed, now),
                "opens": instant(schedule.opens(number)),
                "closes": instant(schedule.closes(number)),
                "deadline": instant(schedule.deadline(number)),
                "reports": reports,
                "expected": dict(expected),
            }
        )
        expected = {name: max(expected[name] or 0, n) or None for name, n in reports.items()}
    return rows[::-1][:last]


def _state(found: Campaign, number: int, sealed: int | None, now: float) -> str:
    schedule = found.manifest.rounds
    if sealed is not None and number <= sealed:
        return "sealed"
    if now < schedule.closes(number):
        return "open"
    return "grace" if now < schedule.deadline(number) else "due"


def campaign_rows(facts: Facts) -> list[Facts]:
    """One row a round and attribute."""
    return [
        {
            "campaign": facts["campaign"],
            "round": row["round"],
            "attribute": name,
            **{key: row[key] for key in ("state", "opens", "closes", "deadline")},
            "received": row["reports"][name],
            "expected": row["expected"][name],
        }
        for row in facts["latest_rounds"]
        for name in row["reports"]
    ]


def over_time_results(store: Store, found: Campaign, attribute: str, last: int) -> list[Result]:
    """The pooled result and the latest sealed rounds of one attribute, as many as may be shown."""
    index = attribute_index(found, attribute)
    return latest_results(store, found, index, min(last, _most_rounds(found, index)))


def _most_rounds(found: Campaign, index: int) -> int:
    """So that one answer holds at most `MOST_ROWS` rows."""
    return max(1, MOST_ROWS // len(found.manifest.attributes[index].values))


def over_time(store: Store, found: Campaign, directory: Path, attribute: str, last: int) -> Facts:
    """One attribute's rounds, all of them pooled, and the floor that pooling cannot go below."""
    index = attribute_index(found, attribute)
    results = over_time_results(store, found, attribute, last)
    sealed = store.last_sealed(found.id)
    pooled = next((r for r in results if r.round is None), None)
    return {
        "campaign": found.name,
        "attribute": attribute,
        "question": found.manifest.attributes[index].question,
        "values": list(found.manifest.attributes[index].values),
        "sealed": 0 if sealed is None else sealed + 1,
        "cut": _most_rounds(found, index) < min(last, 0 if sealed is None else sealed + 1),
        "rounds": [result_facts(found, r, sealed) for r in results if r.round is not None],
        "pooled": None if pooled is None else result_facts(found, pooled, sealed),
        "floor": [] if pooled is None else _floors(found, index, pooled),
        "truth": truth_of(directory, found, attribute),
    }


def _floors(found: Campaign, index: int, pooled: Result) -> list[float]:
    drawn = found.manifest.calibrations[index]
    return [floor(drawn, pooled.devices, f) for f in pooled.projected]


def truth_of(directory: Path, found: Campaign, attribute: str) -> list[float] | None:
    """The true frequencies, if the campaign is a simulation that knows them."""
    truth = (read_truth(directory, found.name) or {}).get(attribute)
    values = next(a.values for a in found.manifest.attributes if a.name == attribute)
    return truth if truth is not None and len(truth) == len(values) else None
