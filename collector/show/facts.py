"""What the collector knows, as typed facts: for the command line, for JSON and for the page.

The keys are what `--json` prints; a key is only ever added.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, TypedDict

from collector.health import Health, examine
from collector.opening import trial_warnings
from collector.records import NO_CAMPAIGN, Campaign
from collector.show.estimates import half_widths
from collector.show.planning import warnings
from collector.show.tables import Row, histogram, instant, times
from collector.show.workers import WorkerFacts, worker_facts
from collector.store import Store
from protocol_spec import OUTCOME_HELP, Attribute, Numbers, Outcome, Reporting, Result

CampaignState = Literal["not begun", "open", "finished", "closed"]


class FillingFacts(TypedDict):
    """A round that is not sealed: reports by attribute, and how many a histogram needs."""

    round: int
    reports: dict[str, int]
    enough: int


class WaitingFacts(TypedDict):
    """A round past its deadline that is not sealed yet: until when at most, and why."""

    round: int
    until: str | None
    why: str


class CampaignStatus(TypedDict):
    """A campaign's rounds, how they fill, and what became of its messages."""

    campaign: str
    title: str
    open: bool
    round: int | None
    rounds: int
    sealed: int
    next_seal: str
    filling: list[FillingFacts]
    outcomes: dict[str, int]
    waiting: WaitingFacts | None
    state: CampaignState


class Overview(TypedDict):
    """Every campaign and the service."""

    service: str
    healthy: bool
    received: int
    campaigns: list[CampaignStatus]
    elsewhere: dict[str, int]
    requests: dict[str, int]
    suspended: int
    workers: list[WorkerFacts]


class StatusFacts(Overview):
    """With names of devices, which are for the operator alone: not for the page."""

    suspended_names: list[str]


class DifferenceFacts(TypedDict):
    """Half-widths of a difference: of a pair named beforehand, and of all pairs at once."""

    pair: float
    tallest: float


class QuantileFacts(TypedDict):
    """Below which number a share `tau` of the devices lies; None where a bin has no end."""

    tau: float
    value: float | None
    low: float | None
    high: float | None


class NumbersFacts(TypedDict):
    """A numeric attribute in numbers; the share `cdf[j]` of the devices lies below `edges[j]`."""

    unit: str
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    mean_bias: float | None
    edges: list[float | None]
    cdf: list[float]
    cdf_low: list[float]
    cdf_high: list[float]
    quantiles: list[QuantileFacts]


class ResultFacts(TypedDict):
    """One histogram with everything needed to read it: what `estimate --json` prints."""

    campaign: str
    digest: str
    attribute: str
    question: str
    round: int | None
    rounds: int
    final: bool
    protocol: str
    n: int
    devices: int
    min_reports: int
    withheld: bool
    confidence: float
    smallest_visible: float | None
    device_bound: float | None
    histogram: list[Row]
    outcomes: dict[str, int]
    reporting: Reporting
    first: int | None
    last: int | None
    n_eff: float | None
    difference: DifferenceFacts | None
    numbers: NumbersFacts | None
    warnings: list[str]
    opens: str | None
    closes: str | None


def campaign_status(store: Store, campaign: Campaign, now: float, health: Health) -> CampaignStatus:
    """The status of one campaign."""
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
        "outcomes": _by_name(store.outcomes(campaign.id)),
        "waiting": _waiting(campaign, health),
        "state": _state(campaign, last, now),
    }


def _state(campaign: Campaign, last: int | None, now: float) -> CampaignState:
    """Finished once every round is sealed, whether or not somebody closed it then."""
    rounds = campaign.manifest.rounds
    if last == rounds.count - 1:
        return "finished"
    if campaign.closed is not None:
        return "closed"
    return "not begun" if now < rounds.first and last is None else "open"


def _waiting(campaign: Campaign, health: Health) -> WaitingFacts | None:
    """What the running service says of a round that it does not seal yet."""
    waits = None if health.beat is None else health.beat.status.waiting.get(campaign.name)
    if waits is None:
        return None
    until = None if waits["until"] is None else instant(int(waits["until"]))
    return {"round": waits["round"], "until": until, "why": waits["why"]}


def overview(store: Store, directory: Path, now: float, campaign: str | None = None) -> Overview:
    """Every campaign, or the one named, and the service."""
    health = examine(directory)
    found = [store.campaign(campaign)] if campaign else store.campaigns()
    return {
        "service": health.finding,
        "healthy": health.well,
        "received": store.received(),
        "campaigns": [campaign_status(store, c, now, health) for c in found],
        "elsewhere": _by_name(store.outcomes(NO_CAMPAIGN)),
        "requests": {str(outcome): n for outcome, n in store.requests().items()},
        "suspended": health.beat.status.suspended if health.beat else 0,
        "workers": worker_facts(store),
    }


def status_facts(
    store: Store, directory: Path, now: float, campaign: str | None = None
) -> StatusFacts:
    """What `status --json` prints."""
    beat = examine(directory).beat
    names = beat.status.suspended_names if beat else []
    return {**overview(store, directory, now, campaign), "suspended_names": names}


def _next_deadline(campaign: Campaign, last: int | None) -> int:
    rounds = campaign.manifest.rounds
    return rounds.deadline(min(rounds.count - 1, 0 if last is None else last + 1))


def filling(store: Store, campaign: Campaign, number: int) -> FillingFacts:
    """How many reports of each attribute a round holds."""
    tallies = store.tallies(campaign.id, number)
    names = [attribute.name for attribute in campaign.manifest.attributes]
    reports = {name: tallies[i].n if i in tallies else 0 for i, name in enumerate(names)}
    return {"round": number, "reports": reports, "enough": campaign.manifest.min_reports}


def result_facts(campaign: Campaign, result: Result, last_sealed: int | None) -> ResultFacts:
    """One histogram with everything needed to read it; final once its round is sealed."""
    attribute = next(a for a in campaign.manifest.attributes if a.name == result.attribute)
    far = None if result.withheld else half_widths(campaign.manifest, result)
    opens, closes = times(campaign, result)
    return {
        "campaign": campaign.name,
        "digest": result.digest.hex(),
        "attribute": result.attribute,
        "question": attribute.question,
        "round": result.round,
        "rounds": result.rounds,
        "final": result.round is None or (last_sealed is not None and result.round <= last_sealed),
        "protocol": result.protocol,
        "n": result.n,
        "devices": result.devices,
        "min_reports": result.min_reports,
        "withheld": result.withheld,
        "confidence": result.confidence,
        "smallest_visible": None if far is None else far.pair,
        "device_bound": None if result.withheld else result.device_bound,
        "histogram": [] if result.withheld else list(histogram(campaign, result)),
        "outcomes": {str(name): n for name, n in result.outcomes.items() if n},
        "reporting": result.reporting,
        "first": result.first,
        "last": result.last,
        "n_eff": result.n_eff,
        "difference": None if far is None else {"pair": far.pair, "tallest": far.tallest},
        "numbers": None if result.numbers is None else _numbers(attribute, result.numbers),
        "warnings": [
            *trial_warnings(campaign.manifest),
            *warnings(attribute, result.reporting),
        ],
        "opens": opens,
        "closes": closes,
    }


def _numbers(attribute: Attribute, numbers: Numbers) -> NumbersFacts:
    """With the edges that the distribution function is stated at: upper ends of bins."""
    ends = (attribute.edges or ())[1 : len(numbers.cdf) + 1]
    return {
        "unit": attribute.unit,
        "mean": numbers.mean,
        "mean_low": numbers.mean_low,
        "mean_high": numbers.mean_high,
        "mean_bias": numbers.mean_bias,
        "edges": [end if math.isfinite(end) else None for end in ends],
        "cdf": list(numbers.cdf),
        "cdf_low": list(numbers.cdf_low),
        "cdf_high": list(numbers.cdf_high),
        "quantiles": [
            {"tau": q.tau, "value": q.value, "low": q.low, "high": q.high}
            for q in numbers.quantiles
        ],
    }


def _by_name(outcomes: dict[Outcome, int]) -> dict[str, int]:
    return {str(name): n for name, n in outcomes.items()}


def outcome_help() -> dict[str, str]:
    """One line on each outcome."""
    return {str(name): text for name, text in OUTCOME_HELP.items()}
