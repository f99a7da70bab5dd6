"""What each page shows, as typed facts: the templates, `.json` and `.csv` say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypedDict

from collector.health import examine
from collector.opening import is_for_others, join_link, trial_warnings
from collector.records import Campaign
from collector.show.facts import (
    CampaignStatus,
    Overview,
    campaign_status,
)
from collector.show.planning import changing, terms_of, warnings, why
from collector.show.tables import instant
from collector.show.truth import read_truth
from collector.show.words import CAVEATS
from collector.store import Store
from collector.web.odds import odds_sentences
from protocol_spec import Reporting, largest_shift

RoundState = Literal["open", "grace", "due", "sealed"]


class AttributeFacts(TypedDict):
    """One question, and how its answers are randomised."""

    name: str
    question: str
    values: list[str]
    protocol: str
    why: str
    one_report: str
    all_reports: str
    changes: bool
    warnings: list[str]


class RoundFacts(TypedDict):
    """One round: its times, and its reports and those expected by attribute."""

    round: int
    state: RoundState
    opens: str
    closes: str
    deadline: str
    reports: dict[str, int]
    expected: dict[str, int | None]


class CampaignFacts(CampaignStatus):
    """A campaign: what is asked, with how much noise and why, and how its rounds fill."""

    purpose: str
    owner: str
    contact: str
    digest: str
    eps_inf: float
    eps_1: float
    belief_one_report: str
    belief_all_reports: str
    min_reports: int
    max_values: int
    first: str
    period_seconds: int
    grace_seconds: int
    expires: str
    simulation: bool
    attributes: list[AttributeFacts]
    latest_rounds: list[RoundFacts]
    reporting: Reporting
    caveat: str
    lifetime_epsilon: float
    answers: int | None
    join: str | None


class CampaignRow(TypedDict):
    """A campaign as a row of `/index.csv`."""

    campaign: str
    title: str
    open: bool
    round: int | None
    rounds: int
    sealed: int
    next_seal: str
    accepted: int
    refused: int


class RoundRow(TypedDict):
    """A round and attribute as a row of a campaign's `.csv`."""

    campaign: str
    round: int
    attribute: str
    state: RoundState
    opens: str
    closes: str
    deadline: str
    received: int
    expected: int | None


CAMPAIGN_COLUMNS: Final = tuple(CampaignRow.__annotations__)
ROUND_COLUMNS: Final = tuple(RoundRow.__annotations__)


def home_rows(overview: Overview) -> list[CampaignRow]:
    """One row a campaign."""
    return [_campaign_row(status) for status in overview["campaigns"]]


def _campaign_row(c: CampaignStatus) -> CampaignRow:
    accepted = c["outcomes"].get("accepted", 0)
    return {
        "campaign": c["campaign"],
        "title": c["title"],
        "open": c["open"],
        "round": c["round"],
        "rounds": c["rounds"],
        "sealed": c["sealed"],
        "next_seal": c["next_seal"],
        "accepted": accepted,
        "refused": sum(c["outcomes"].values()) - accepted,
    }


def campaign(
    store: Store, found: Campaign, directory: Path, now: float, last: int
) -> CampaignFacts:
    """The facts of one campaign with its latest rounds."""
    manifest, schedule = found.manifest, found.manifest.rounds
    return {
        **campaign_status(store, found, now, examine(directory)),
        "purpose": manifest.purpose,
        "owner": manifest.owner,
        "contact": manifest.contact,
        "digest": manifest.digest.hex(),
        "eps_inf": manifest.eps_inf,
        "eps_1": manifest.eps_1,
        "belief_one_report": largest_shift(manifest.eps_1),
        "belief_all_reports": largest_shift(_whole_bound(found)),
        "min_reports": manifest.min_reports,
        "max_values": manifest.max_values,
        "first": instant(schedule.first),
        "period_seconds": schedule.period,
        "grace_seconds": schedule.grace,
        "expires": instant(manifest.expires),
        "simulation": read_truth(directory, found.name) is not None,
        "attributes": [_attribute(found, i) for i in range(len(manifest.attributes))],
        "latest_rounds": _rounds(store, found, now, last),
        "reporting": manifest.reporting,
        "caveat": CAVEATS[manifest.reporting],
        "lifetime_epsilon": manifest.lifetime_epsilon,
        "answers": schedule.each or None,
        "join": _join(directory, found),
    }


def _join(directory: Path, found: Campaign) -> str | None:
    """The link by which owners join; None where it would be of no use to them."""
    link = join_link(directory, found.manifest) if found.closed is None else None
    return link if link is not None and is_for_others(link) else None


def _whole_bound(found: Campaign) -> float:
    """Of all reports: for memoized values, of each of them."""
    manifest = found.manifest
    return manifest.eps_inf if manifest.reporting == "memoized" else manifest.lifetime_epsilon


def _attribute(found: Campaign, index: int) -> AttributeFacts:
    attribute, way = found.manifest.attributes[index], found.manifest.ways[index]
    one_report, all_reports = odds_sentences(way, attribute.values[0])
    return {
        "name": attribute.name,
        "question": attribute.question,
        "values": list(attribute.values),
        "protocol": way.protocol,
        "why": why(attribute, way, terms_of(found.manifest)),
        "one_report": one_report,
        "all_reports": all_reports,
        "changes": changing(attribute),
        "warnings": [
            *trial_warnings(found.manifest),
            *warnings(attribute, found.manifest.reporting),
        ],
    }


def _rounds(store: Store, found: Campaign, now: float, last: int) -> list[RoundFacts]:
    """The latest rounds, newest first. As many reports are expected as the fullest of the rounds
    before had, because a device reports in every round."""
    schedule, names = found.manifest.rounds, [a.name for a in found.manifest.attributes]
    sealed = store.last_sealed(found.id)
    begun = -1 if now < schedule.first else (int(now) - schedule.first) // schedule.period
    filled = [-1 if sealed is None else sealed, *store.open_rounds(found.id)]
    newest = max(min(begun, schedule.count - 1), *filled)
    expected: dict[str, int | None] = dict.fromkeys(names)
    rows: list[RoundFacts] = []
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


def _state(found: Campaign, number: int, sealed: int | None, now: float) -> RoundState:
    schedule = found.manifest.rounds
    if sealed is not None and number <= sealed:
        return "sealed"
    if now < schedule.closes(number):
        return "open"
    return "grace" if now < schedule.deadline(number) else "due"


def campaign_rows(shown: CampaignFacts) -> list[RoundRow]:
    """One row a round and attribute."""
    return [
        {
            "campaign": shown["campaign"],
            "round": row["round"],
            "attribute": name,
            "state": row["state"],
            "opens": row["opens"],
            "closes": row["closes"],
            "deadline": row["deadline"],
            "received": row["reports"][name],
            "expected": row["expected"][name],
        }
        for row in shown["latest_rounds"]
        for name in row["reports"]
    ]
