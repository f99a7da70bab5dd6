"""The collector's knowledge as plain facts, for the command line, JSON and the page alike."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collector.errors import UnknownCampaign
from collector.health import examine
from collector.records import POOLED, Campaign
from collector.rounds.results import round_result
from collector.show.planning import Plan
from collector.show.tables import rows
from collector.store import Store
from protocol_spec import OUTCOME_HELP, Result

Facts = dict[str, Any]


def campaign_status(store: Store, campaign: Campaign, now: float) -> Facts:
    """How a campaign stands: its rounds, how they fill, what became of its messages."""
    manifest = campaign.manifest
    last = store.last_sealed(campaign.id)
    return {
        "campaign": campaign.name,
        "title": manifest.title,
        "open": campaign.closed is None,
        "round": manifest.rounds.round_at(now),
        "rounds": manifest.rounds.count,
        "sealed": 0 if last is None else last + 1,
        "next_seal": instant(_next_deadline(campaign, last)),
        "filling": [filling(store, campaign, n) for n in store.open_rounds(campaign.id)],
        "outcomes": {str(name): n for name, n in store.outcomes(campaign.id).items()},
    }


def overview(store: Store, directory: Path, now: float, campaign: str | None = None) -> Facts:
    """Every campaign, or the one named, and how the service is: what `status --json` prints."""
    health = examine(directory)
    found = [store.campaign(campaign)] if campaign else store.campaigns()
    return {
        "service": health.finding,
        "healthy": health.well,
        "received": store.received(),
        "campaigns": [campaign_status(store, c, now) for c in found],
        "elsewhere": {str(name): n for name, n in store.outcomes(0).items()},
    }


def _next_deadline(campaign: Campaign, last: int | None) -> int:
    rounds = campaign.manifest.rounds
    return rounds.deadline(min(rounds.count - 1, 0 if last is None else last + 1))


def filling(store: Store, campaign: Campaign, number: int) -> Facts:
    """How many reports of each attribute a round holds."""
    tallies = store.tallies(campaign.id, number)
    names = [attribute.name for attribute in campaign.manifest.attributes]
    reports = {name: tallies[i].n if i in tallies else 0 for i, name in enumerate(names)}
    return {"round": number, "reports": reports, "enough": campaign.manifest.min_reports}


def chosen_results(
    store: Store, campaign: Campaign, attribute: str | None, number: str | None
) -> list[Result]:
    """Results by attribute and round: a number, `latest`, `pooled` (the default) or `all`."""
    index = None if attribute is None else attribute_index(campaign, attribute)
    wanted = number or "pooled"
    if wanted == "all":
        return store.results(campaign.id, index)
    which = POOLED if wanted == "pooled" else _round_number(store, campaign, wanted)
    stored = store.results(campaign.id, index, range(which, which + 1))
    if wanted == "pooled":
        return _or_say(stored, campaign, "no round is sealed yet")
    return stored or preliminary(store, campaign, which, index)


def latest_results(store: Store, campaign: Campaign, index: int, last: int) -> list[Result]:
    """The pooled result of one attribute and its latest sealed rounds, in order."""
    sealed = store.last_sealed(campaign.id)
    end = 0 if sealed is None else sealed + 1
    pooled = store.results(campaign.id, index, range(POOLED, POOLED + 1))
    return pooled + store.results(campaign.id, index, range(max(0, end - last), end))


def attribute_index(campaign: Campaign, attribute: str) -> int:
    """Where an attribute stands in its manifest."""
    names = [a.name for a in campaign.manifest.attributes]
    if attribute not in names:
        raise UnknownCampaign(f"{attribute!r} is no attribute; there are: {', '.join(names)}")
    return names.index(attribute)


def preliminary(store: Store, campaign: Campaign, number: int, index: int | None) -> list[Result]:
    """A round that is still filling, as it would be if it were sealed now."""
    tallies = store.tallies(campaign.id, number)
    counted = store.outcomes(campaign.id, number)
    indices = range(len(campaign.manifest.attributes)) if index is None else [index]
    made = [round_result(campaign, number, i, tallies.get(i), counted) for i in indices]
    return _or_say(made if tallies else [], campaign, f"round {number} has no reports")


def _round_number(store: Store, campaign: Campaign, wanted: str) -> int:
    if wanted == "latest":
        last = store.last_sealed(campaign.id)
        return 0 if last is None else last
    count = campaign.manifest.rounds.count
    if not wanted.isdecimal() or len(wanted) > 9 or int(wanted) >= count:
        raise UnknownCampaign(
            f"round {wanted!r}: give a number below {count}, latest, pooled or all"
        )
    return int(wanted)


def _or_say(found: list[Result], campaign: Campaign, why: str) -> list[Result]:
    if not found:
        raise UnknownCampaign(f"{campaign.name}: {why}; see allomfree-collector status")
    return found


def result_facts(campaign: Campaign, result: Result, last_sealed: int | None) -> Facts:
    """One histogram with everything needed to read it; final once its round is sealed."""
    question = next(a for a in campaign.manifest.attributes if a.name == result.attribute).question
    halves = [(h - low) / 2 for low, h in zip(result.low, result.high)]
    return {
        "campaign": campaign.name,
        "digest": result.digest.hex(),
        "attribute": result.attribute,
        "question": question,
        "round": result.round,
        "rounds": result.rounds,
        "final": result.round is None or (last_sealed is not None and result.round <= last_sealed),
        "protocol": result.protocol,
        "n": result.n,
        "devices": result.devices,
        "min_reports": result.min_reports,
        "withheld": result.withheld,
        "confidence": result.confidence,
        "smallest_visible": max(halves, default=None),
        "device_bound": None if result.withheld else result.device_bound,
        "histogram": [] if result.withheld else list(rows(campaign, [result])),
        "outcomes": {str(name): n for name, n in result.outcomes.items() if n},
    }


def plan_facts(planned: Plan) -> Facts:
    """A plan as plain values."""
    return asdict(planned)


def outcome_help() -> dict[str, str]:
    """One line on each outcome."""
    return {str(name): text for name, text in OUTCOME_HELP.items()}


def instant(seconds: int) -> str:
    """A moment as people and programs read it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
