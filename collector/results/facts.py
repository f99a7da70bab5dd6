"""What the collector knows, as facts for the command line, for JSON and for the page.

The keys are what `--json` prints and what the page gives under `.json`; a key is only ever added.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypedDict

from collector.errors import StorageFailure, UnknownCampaign
from collector.health import Health, examine
from collector.opening import is_for_others, join_link, trial_warnings
from collector.planning import floor, terms_of, warnings, why
from collector.records import NO_CAMPAIGN, POOLED, Campaign
from collector.results.estimates import most_interesting
from collector.results.tables import Row, bin_ends, histogram, instant, times
from collector.results.words import CAVEATS, odds_sentences
from collector.rounds.results import round_result
from collector.store import Store, StoreReader
from protocol_spec import Attribute, Numbers, Outcome, Reporting, Result, largest_shift
from protocol_spec.programs.output import quoted, shown
from protocol_spec.programs.system import write_durably

MOST_ROWS: Final = 50_000  # values times rounds in one answer, for its memory
ROLES: Final = ("leads", "counts", "fenced")

CampaignState = Literal["not begun", "open", "finished", "closed"]
RoundState = Literal["open", "grace", "due", "sealed"]
Facts = dict[str, Any]


class WorkerFacts(TypedDict):
    """A worker as the others see it; `drained` is how many seconds ago it had nothing waiting."""

    number: int
    name: str
    leads: bool
    fenced: bool
    silent: float
    drained: float | None
    received: int


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
    """One histogram with everything needed to read it: what `estimate --json` prints.

    `difference` has the half-widths of a difference, of a `pair` named beforehand and of all pairs
    at once, which shows which value is `tallest`.
    """

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
    first: int
    last: int
    n_eff: float
    difference: dict[str, float] | None
    numbers: NumbersFacts | None
    warnings: list[str]
    opens: str
    closes: str


# --- which results somebody asked for -----------------------------------------------------------


def chosen_results(
    store: Store, campaign: Campaign, attribute: str | None, wanted: str
) -> list[Result]:
    """Results by attribute and round: a number, `latest`, `pooled` or `all`."""
    index = None if attribute is None else attribute_index(campaign, attribute)
    if wanted == "all":
        return store.results(campaign.id, index)
    which = POOLED if wanted == "pooled" else _round_number(store, campaign, wanted)
    stored = store.results(campaign.id, index, range(which, which + 1))
    if wanted == "pooled":
        return _or_explain(stored, campaign, "no round is sealed yet")
    return stored or _preliminary(store, campaign, which, index)


def attribute_index(campaign: Campaign, attribute: str) -> int:
    """The position of an attribute in its manifest."""
    names = [a.name for a in campaign.manifest.attributes]
    if attribute not in names:
        raise UnknownCampaign(
            f"unknown attribute {quoted(attribute)}; the campaign has: "
            f"{shown(', '.join(names), 600)}"
        )
    return names.index(attribute)


def _round_number(store: Store, campaign: Campaign, wanted: str) -> int:
    if wanted == "latest":
        return store.last_sealed(campaign.id) or 0
    count = campaign.manifest.rounds.count
    if not wanted.isdecimal() or len(wanted) > 9 or int(wanted) >= count:
        raise UnknownCampaign(
            f"round {quoted(wanted)}: give a number below {count}, latest, pooled or all"
        )
    return int(wanted)


def _preliminary(store: Store, campaign: Campaign, number: int, index: int | None) -> list[Result]:
    """A round that is still filling, as it would be if it were sealed now."""
    tallies = store.tallies(campaign.id, number)
    counted = store.outcomes(campaign.id, number)
    indices = range(len(campaign.manifest.attributes)) if index is None else [index]
    made = [round_result(campaign, number, i, tallies.get(i), counted) for i in indices]
    return _or_explain(made if tallies else [], campaign, f"round {number} has no reports")


def _or_explain(found: list[Result], campaign: Campaign, why: str) -> list[Result]:
    if not found:
        raise UnknownCampaign(f"{campaign.name}: {why}; see allomfree-collector status")
    return found


class Latest(NamedTuple):
    """The latest rounds of a question, in order, and all that was released of it."""

    pooled: Result | None
    rounds: list[Result]

    @property
    def results(self) -> list[Result]:
        """All of them, the pooled one first."""
        return [*([] if self.pooled is None else [self.pooled]), *self.rounds]


def latest_results(
    store: Store, campaign: Campaign, index: int, last: int, until: int | None = None
) -> Latest:
    """The pooled result of one attribute and its latest sealed rounds, up to round `until`.

    An attribute that no report was ever about has nothing pooled.
    """
    sealed = store.last_sealed(campaign.id)
    end = 0 if sealed is None else sealed + 1
    end = end if until is None else min(end, until + 1)
    rounds = store.results(campaign.id, index, range(max(0, end - last), end))
    return Latest(pooled_result(store, campaign, index), rounds)


def pooled_result(store: Store, campaign: Campaign, index: int) -> Result | None:
    """All that was released of an attribute, as one result; none before the first sealing."""
    return next(iter(store.results(campaign.id, index, range(POOLED, POOLED + 1))), None)


# --- status -------------------------------------------------------------------------------------


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


def worker_facts(store: StoreReader) -> list[WorkerFacts]:
    """Workers that enlisted and did not retire; times by the database's clock."""
    now = store.now()
    return [
        {
            "number": worker.number,
            "name": worker.name,
            "leads": worker.leads,
            "fenced": worker.fenced,
            "silent": round(max(0.0, now - worker.seen), 1),
            "drained": round(max(0.0, now - worker.drained), 1) if worker.drained else None,
            "received": worker.received,
        }
        for worker in store.workers()
    ]


def role_of(worker: WorkerFacts) -> str:
    """What it does: one of `ROLES`."""
    return "fenced" if worker["fenced"] else "leads" if worker["leads"] else "counts"


def campaign_status(store: Store, campaign: Campaign, now: float, health: Health) -> CampaignStatus:
    """The status of one campaign."""
    manifest, rounds = campaign.manifest, campaign.manifest.rounds
    last = store.last_sealed(campaign.id)
    sealed = 0 if last is None else last + 1
    return {
        "campaign": campaign.name,
        "title": manifest.title,
        "open": campaign.closed is None,
        "round": rounds.round_at(now),
        "rounds": rounds.count,
        "sealed": sealed,
        "next_seal": instant(rounds.deadline(min(rounds.count - 1, sealed))),
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
    """Why the running service does not seal a round yet."""
    waits = None if health.beat is None else health.beat.status.waiting.get(campaign.name)
    if waits is None:
        return None
    until = None if waits["until"] is None else instant(int(waits["until"]))
    return {"round": waits["round"], "until": until, "why": waits["why"]}


def filling(store: Store, campaign: Campaign, number: int) -> FillingFacts:
    """How many reports of each attribute a round holds."""
    tallies = store.tallies(campaign.id, number)
    names = [attribute.name for attribute in campaign.manifest.attributes]
    reports = {name: tallies[i].n if i in tallies else 0 for i, name in enumerate(names)}
    return {"round": number, "reports": reports, "enough": campaign.manifest.min_reports}


def _by_name(outcomes: dict[Outcome, int]) -> dict[str, int]:
    return {str(name): n for name, n in outcomes.items()}


# --- one result ---------------------------------------------------------------------------------


def result_facts(campaign: Campaign, result: Result, last_sealed: int | None) -> ResultFacts:
    """One histogram with everything needed to read it; final once its round is sealed."""
    attribute = campaign.manifest.attributes[attribute_index(campaign, result.attribute)]
    far = result.difference
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
        "warnings": _warnings(campaign, attribute),
        "opens": opens,
        "closes": closes,
    }


def _warnings(campaign: Campaign, attribute: Attribute) -> list[str]:
    manifest = campaign.manifest
    return [*trial_warnings(manifest), *warnings(attribute, manifest.reporting)]


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


# --- one campaign -------------------------------------------------------------------------------


def campaign_facts(store: Store, found: Campaign, directory: Path, now: float, last: int) -> Facts:
    """The status, what is asked with how much noise and why, and the latest rounds."""
    manifest, schedule = found.manifest, found.manifest.rounds
    # Of all reports: for memoized values, of each of them.
    bound = manifest.eps_inf if manifest.reporting == "memoized" else manifest.lifetime_epsilon
    link = join_link(directory, manifest) if found.closed is None else None
    return {
        **campaign_status(store, found, now, examine(directory)),
        "purpose": manifest.purpose,
        "owner": manifest.owner,
        "contact": manifest.contact,
        "digest": manifest.digest.hex(),
        "eps_inf": manifest.eps_inf,
        "eps_1": manifest.eps_1,
        "belief_one_report": largest_shift(manifest.eps_1),
        "belief_all_reports": largest_shift(bound),
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
        "join": link if link is not None and is_for_others(link) else None,
    }


def _attribute(found: Campaign, index: int) -> Facts:
    """One question, and how its answers are randomised."""
    attribute, way = found.manifest.attributes[index], found.manifest.mechanisms[index]
    one_report, all_reports = odds_sentences(way, attribute.values[0])
    return {
        "name": attribute.name,
        "question": attribute.question,
        "values": list(attribute.values),
        "protocol": way.protocol,
        "why": why(attribute, way, terms_of(found.manifest)),
        "one_report": one_report,
        "all_reports": all_reports,
        "changes": attribute.changes,
        "warnings": _warnings(found, attribute),
    }


def _rounds(store: Store, found: Campaign, now: float, last: int) -> list[Facts]:
    """The latest rounds, newest first. As many reports are expected as the fullest of the rounds
    before had, because a device reports in every round."""
    schedule, sealed = found.manifest.rounds, store.last_sealed(found.id)
    begun = -1 if now < schedule.first else (int(now) - schedule.first) // schedule.period
    filled = [-1 if sealed is None else sealed, *store.open_rounds(found.id)]
    newest = max(min(begun, schedule.count - 1), *filled)
    expected: dict[str, int | None] = {a.name: None for a in found.manifest.attributes}
    rows: list[Facts] = []
    for number in range(max(0, newest + 1 - 2 * last), newest + 1):
        reports = filling(store, found, number)["reports"]
        rows.append(
            {
                "round": number,
                "state": _round_state(found, number, sealed, now),
                "opens": instant(schedule.opens(number)),
                "closes": instant(schedule.closes(number)),
                "deadline": instant(schedule.deadline(number)),
                "reports": reports,
                "expected": expected,
            }
        )
        expected = {name: max(expected[name] or 0, n) or None for name, n in reports.items()}
    return rows[::-1][:last]


def _round_state(found: Campaign, number: int, sealed: int | None, now: float) -> RoundState:
    schedule = found.manifest.rounds
    if sealed is not None and number <= sealed:
        return "sealed"
    if now < schedule.closes(number):
        return "open"
    return "grace" if now < schedule.deadline(number) else "due"


CAMPAIGN_COLUMNS: Final = (
    *("campaign", "title", "open", "round", "rounds", "sealed", "next_seal"),
    *("accepted", "refused"),
)
ROUND_COLUMNS: Final = (
    *("campaign", "round", "attribute", "state", "opens", "closes", "deadline"),
    *("received", "expected"),
)


def campaign_rows(found: Overview) -> list[Facts]:
    """One row per campaign."""
    accepted = [c["outcomes"].get("accepted", 0) for c in found["campaigns"]]
    return [
        {**c, "accepted": n, "refused": sum(c["outcomes"].values()) - n}
        for c, n in zip(found["campaigns"], accepted)
    ]


def round_rows(found: Facts) -> list[Facts]:
    """One row per round and attribute of a campaign."""
    more = {"campaign": found["campaign"]}
    return [
        {**row, **more, "attribute": name, "received": n, "expected": row["expected"][name]}
        for row in found["latest_rounds"]
        for name, n in row["reports"].items()
    ]


# --- one question over time ---------------------------------------------------------------------


def most_rounds(found: Campaign, index: int, most_rows: int = MOST_ROWS) -> int:
    """How many rounds fit into one answer."""
    return max(1, most_rows // found.manifest.attributes[index].k)


def over_time(
    store: Store, found: Campaign, directory: Path, index: int, latest: Latest, *, cut: bool
) -> Facts:
    """One attribute's rounds, all of them pooled, and the floor that pooling cannot go below.

    `cut` is whether rounds that were asked for did not fit into the answer.
    """
    last_sealed = store.last_sealed(found.id)
    pooled, rounds = latest
    asked, reporting = found.manifest.attributes[index], found.manifest.reporting
    return {
        "campaign": found.name,
        "attribute": asked.name,
        "question": asked.question,
        "values": list(asked.values),
        "sealed": 0 if last_sealed is None else last_sealed + 1,
        "cut": cut,
        "rounds": [result_facts(found, r, last_sealed) for r in rounds],
        "pooled": None if pooled is None else result_facts(found, pooled, last_sealed),
        "floor": [] if pooled is None else _floors(found, index, pooled),
        "truth": truth_of(directory, found, asked.name),
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
) -> Facts | None:
    """The value to begin with: the largest change beyond chance, else the most frequent one."""
    found = most_interesting(rounds, pooled)
    if found is None:
        return None
    change = None
    if found.change is not None:
        before, after = found.change
        change = {"from_round": before.round, "from_raw": before.raw}
        change |= {"to_round": after.round, "to_raw": after.raw}
    return {"value": values[found.place], "change": change}


def _floors(found: Campaign, index: int, pooled: Result) -> list[float]:
    way, terms = found.manifest.mechanisms[index], terms_of(found.manifest)
    return [floor(way, terms, pooled.n_eff, f) for f in pooled.projected]


# --- a simulation's true frequencies: nothing that collects from devices writes this file --------


def write_truth(directory: Path, campaign: str, frequencies: Mapping[str, Sequence[float]]) -> None:
    """Keep each attribute's true frequencies next to the data."""
    text = json.dumps({name: [float(f) for f in row] for name, row in frequencies.items()})
    write_durably(_truth_file(directory, campaign), text)


def read_truth(directory: Path, campaign: str) -> dict[str, list[float]] | None:
    """The true frequencies by attribute, or None: then the campaign is real."""
    path = _truth_file(directory, campaign)
    try:
        found = json.loads(path.read_bytes())
        return {str(name): [float(f) for f in row] for name, row in found.items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        raise StorageFailure(
            f"{path} does not hold a simulation's true frequencies; remove it, or simulate again"
        ) from None


def _truth_file(directory: Path, campaign: str) -> Path:
    return directory / f"truth-{campaign}.json"


def truth_of(directory: Path, found: Campaign, attribute: str) -> list[float] | None:
    """The true frequencies of one attribute, if the campaign is a simulation that knows them."""
    truth = (read_truth(directory, found.name) or {}).get(attribute)
    k = found.manifest.attributes[attribute_index(found, attribute)].k
    return truth if truth is not None and len(truth) == k else None
