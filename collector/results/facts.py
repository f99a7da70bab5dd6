"""What the collector knows, as facts for the command line, for JSON and for the page.

The keys are what `--json` prints and what the page gives under `.json`, as docs/results.md lists
them; a key is only ever added.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from collector.errors import StorageFailure, UnknownCampaign
from collector.health import Health, examine, findings
from collector.opening import is_for_others, join_link, trial_warnings
from collector.planning import LIARS, TARGET, warnings, why
from collector.records import NO_CAMPAIGN, POOLED, Campaign
from collector.results.display import headline, shares
from collector.results.estimates import (
    attribute_of,
    lie_shift_of,
    most_interesting,
    plausibility_of,
    relation_of,
    share_for_shift_of,
)
from collector.results.tables import bin_ends, histogram, instant, margin_facts, of_result
from collector.results.words import Facts, in_percent, odds_sentences
from collector.rounds.results import round_result
from collector.store import Store
from protocol_spec import (
    Attribute,
    Numbers,
    Outcome,
    Result,
    is_trial,
    largest_shift,
    made_up_frequencies,
)
from protocol_spec.mechanisms import MECHANISMS
from protocol_spec.programs.output import quoted, shown
from protocol_spec.programs.system import write_durably

ROLES: Final = ("leads", "counts", "fenced")

CampaignState = Literal["not begun", "open", "finished", "closed"]
RoundState = Literal["open", "grace", "due", "sealed"]


# --- which results somebody asked for -----------------------------------------------------------


def chosen_results(
    store: Store, campaign: Campaign, attribute: str | None, wanted: str
) -> list[Result]:
    """Results by attribute and round: a number, `latest`, `pooled` or `all`."""
    index = None if attribute is None else attribute_index(campaign, attribute)
    if wanted == "all":
        return store.results(campaign.id, index)
    if wanted == "pooled":
        stored = store.results(campaign.id, index, range(POOLED, POOLED + 1))
        return _or_explain(stored, campaign, "no round is sealed yet")
    number = round_number(store, campaign, wanted)
    stored = store.results(campaign.id, index, range(number, number + 1))
    if stored:
        return stored
    return [_open_round(store, campaign, number, i) for i in attribute_indexes(campaign, attribute)]


def _open_round(store: Store, campaign: Campaign, number: int, index: int) -> Result:
    """A round that is not sealed: no histogram, and of its size only whole steps (P1).

    Counts read before and after a report would be that report.
    """
    name = campaign.manifest.attributes[index].name
    n = filling(store, campaign, number)["reports"][name]
    nothing = round_result(campaign, number, index, None, {})
    return replace(nothing, n=n, devices=n, n_eff=float(n), rounds=min(n, 1))


def attribute_index(campaign: Campaign, attribute: str) -> int:
    """The position of an attribute in its manifest."""
    names = [a.name for a in campaign.manifest.attributes]
    if attribute not in names:
        raise UnknownCampaign(
            f"unknown attribute {quoted(attribute)}; the campaign has: "
            f"{shown(', '.join(names), 600)}"
        )
    return names.index(attribute)


def attribute_indexes(campaign: Campaign, attribute: str | None) -> Sequence[int]:
    """Of all attributes, or of the one named."""
    if attribute is None:
        return range(len(campaign.manifest.attributes))
    return [attribute_index(campaign, attribute)]


def round_number(store: Store, campaign: Campaign, wanted: str) -> int:
    if wanted == "latest":
        return store.last_sealed(campaign.id) or 0
    count = campaign.manifest.rounds.count
    if not wanted.isdecimal() or len(wanted) > 9 or int(wanted) >= count:
        raise UnknownCampaign(
            f"round {quoted(wanted)}: give a number below {count}, latest, pooled or all"
        )
    return int(wanted)


def _or_explain(found: list[Result], campaign: Campaign, reason: str) -> list[Result]:
    if not found:
        raise UnknownCampaign(f"{campaign.name}: {reason}; see allomfree-collector status")
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
    end = sealed_rounds(store, campaign)
    end = end if until is None else min(end, until + 1)
    rounds = store.results(campaign.id, index, range(max(0, end - last), end))
    return Latest(pooled_result(store, campaign, index), rounds)


def pooled_result(store: Store, campaign: Campaign, index: int) -> Result | None:
    """All that was released of an attribute, as one result; none before the first sealing."""
    return next(iter(store.results(campaign.id, index, range(POOLED, POOLED + 1))), None)


def sealed_rounds(store: Store, campaign: Campaign) -> int:
    """How many rounds are sealed."""
    last = store.last_sealed(campaign.id)
    return 0 if last is None else last + 1


# --- status -------------------------------------------------------------------------------------


def overview(store: Store, directory: Path, now: float, campaign: str | None = None) -> Facts:
    """Every campaign, or the one named, and the service."""
    health = examine(directory)
    found = [store.campaign(campaign)] if campaign else store.campaigns()
    return {
        "service": health.finding,
        "healthy": health.well,
        "warnings": [f.facts() for f in findings(directory, health) if f.warning],
        "received": store.received(),
        "campaigns": [campaign_status(store, c, now, health) for c in found],
        "elsewhere": _by_name(store.outcomes(NO_CAMPAIGN)),
        "requests": {str(outcome): n for outcome, n in store.requests().items()},
        "suspended": health.beat.status.suspended if health.beat else 0,
        "workers": worker_facts(store),
    }


def status_facts(store: Store, directory: Path, now: float, campaign: str | None = None) -> Facts:
    """With names of devices, which are for the operator alone: not for the page."""
    beat = examine(directory).beat
    names = beat.status.suspended_names if beat else []
    return {**overview(store, directory, now, campaign), "suspended_names": names}


def worker_facts(store: Store) -> list[Facts]:
    """Workers that enlisted and did not retire; `silent` and `drained` are seconds ago, by the
    database's clock."""
    now = store.now()
    return [
        {
            **{name: getattr(worker, name) for name in ("number", "name", "leads", "fenced")},
            "silent": round(max(0.0, now - worker.seen), 1),
            "drained": round(max(0.0, now - worker.drained), 1) if worker.drained else None,
            "received": worker.received,
        }
        for worker in store.workers()
    ]


def role_of(worker: Facts) -> str:
    """What it does: one of `ROLES`."""
    return "fenced" if worker["fenced"] else "leads" if worker["leads"] else "counts"


def campaign_status(store: Store, campaign: Campaign, now: float, health: Health) -> Facts:
    """A campaign's rounds, how they fill, and what became of its messages."""
    manifest, rounds = campaign.manifest, campaign.manifest.rounds
    sealed = sealed_rounds(store, campaign)
    waits = None if health.beat is None else health.beat.status.waiting.get(campaign.name)
    waiting: Facts | None = None if waits is None else {**waits}
    if waiting is not None and waiting["until"] is not None:
        waiting["until"] = instant(int(waiting["until"]))
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
        "waiting": waiting,
        "state": _state(campaign, sealed, now),
    }


def _state(campaign: Campaign, sealed: int, now: float) -> CampaignState:
    """Finished once every round is sealed, whether or not somebody closed it then."""
    rounds = campaign.manifest.rounds
    if sealed == rounds.count:
        return "finished"
    if campaign.closed is not None:
        return "closed"
    return "not begun" if now < rounds.first and not sealed else "open"


def filling(store: Store, campaign: Campaign, number: int) -> Facts:
    """Reports of each attribute in a round that is not sealed, and how many a histogram needs.

    In whole steps of that number: polled before and after a report, they do not isolate it (P1).
    """
    step = campaign.manifest.min_reports
    reports = {name: n // step * step for name, n in _reports(store, campaign, number).items()}
    return {"round": number, "reports": reports, "enough": step}


def _reports(store: Store, campaign: Campaign, number: int) -> dict[str, int]:
    tallies = store.tallies(campaign.id, number)
    names = enumerate(attribute.name for attribute in campaign.manifest.attributes)
    return {name: sum(tallies[c].n for c in campaign.cells(i) if c in tallies) for i, name in names}


def _by_name(outcomes: Mapping[Outcome, int]) -> dict[str, int]:
    return {str(name): n for name, n in outcomes.items()}


# --- one result ---------------------------------------------------------------------------------


FROM_RESULT: Final = ("min_reports", "confidence", "reporting", "heard", "returned")


def result_facts(campaign: Campaign, result: Result, last_sealed: int | None) -> Facts:
    """One histogram with everything needed to read it: what `estimate --json` prints.

    It is final once its round is sealed. `difference` has the half-widths of a difference, of a
    `pair` named beforehand and of all pairs at once, which shows which value is `tallest`.
    """
    attribute, far = attribute_of(campaign.manifest, result), result.difference
    silence = _silence(campaign, result)
    final = result.round is None or (last_sealed is not None and result.round <= last_sealed)
    return {
        "sentence": headline(campaign.manifest, result, final=final),
        **of_result(campaign, result),
        **{name: getattr(result, name) for name in FROM_RESULT},
        "digest": result.digest.hex(),
        "device_bound": None if result.withheld else result.device_bound,
        "trial": is_trial(campaign.manifest),
        "question": attribute.question,
        "final": final,
        "histogram": [] if result.withheld else list(histogram(campaign, result)),
        "outcomes": _by_name({name: n for name, n in result.outcomes.items() if n}),
        "difference": None if far is None else {"pair": far.pair, "tallest": far.tallest},
        "numbers": None if result.numbers is None else _numbers(attribute, result.numbers),
        "pair": _pair(campaign, result),
        "plausible": is_plausible(campaign, result),
        "lies": _lies(campaign, result),
        "silence": silence,
        "warnings": [
            *_warnings(campaign, attribute),
            *_implausible(campaign, result),
            *_too_silent(result, silence),
        ],
    }


def _pair(campaign: Campaign, result: Result) -> Facts | None:
    """Both margins of a pair, and whether its questions are related."""
    found = relation_of(campaign.manifest, result)
    if found is None:
        return None
    margins = list(margin_facts(campaign, result))
    return {"margins": margins, "related": found.shown, **asdict(found)}


def _warnings(campaign: Campaign, attribute: Attribute) -> list[str]:
    manifest = campaign.manifest
    return [*trial_warnings(manifest), *warnings(attribute, manifest.reporting)]


def is_plausible(campaign: Campaign, result: Result) -> bool | None:
    """Whether honest devices can have sent this, chance apart; None where it is withheld."""
    found = plausibility_of(campaign.manifest, result)
    return None if found is None else found.ok


def _silence(campaign: Campaign, result: Result) -> Facts | None:
    """Limits whatever silent devices hold: of a round, those heard before that did not report in
    it; of several rounds, reports that devices did not send. None where every device counts once
    (nested) or only answers when it is its turn (once)."""
    combined = campaign.manifest.mechanisms[0].analysis.combined
    if result.withheld or combined != "pooled":
        return None
    share = result.returned / result.heard if result.heard else 1.0
    silent = result.heard - result.returned
    shift = silent / (silent + result.devices)
    low = [end * (1.0 - shift) for end in result.low]
    high = [end * (1.0 - shift) + shift for end in result.high]
    if result.round is None:
        shift = result.uneven
        low = [max(0.0, end - shift) for end in result.low]
        high = [min(1.0, end + shift) for end in result.high]
    return {"share": share, "shift": shift, "low": low, "high": high}


def _too_silent(result: Result, silence: Facts | None) -> list[str]:
    """A warning where silence can hide more than the intervals allow for."""
    widest = max((high - low for low, high in zip(result.low, result.high)), default=0.0) / 2.0
    if silence is None or silence["shift"] <= widest:
        return []
    why = "some devices reported more often than others"
    if result.round is not None:
        why = f"{result.heard - result.returned:,} of {result.heard:,} devices did not report again"
    warning = (
        f"{why}; if that depends on their value, a bar can be off by up to "
        f"{in_percent(silence['shift'])} points, more than its interval says"
    )
    return [warning]


def _implausible(campaign: Campaign, result: Result) -> list[str]:
    found = plausibility_of(campaign.manifest, result)
    if found is None or found.ok:
        return []
    reasons = []
    if found.sum_is_off and found.sum_z is not None:
        apart = f"{abs(found.sum_z):.1f} standard errors from 100 %"
        reasons.append(f"the unbiased estimates sum to {in_percent(found.total)} %, {apart}")
    if found.lowest_is_off:
        value = attribute_of(campaign.manifest, result).values[found.lowest]
        reasons.append(f"“{value}” is {abs(found.lowest_z):.1f} standard errors below 0")
    warning = (
        f"honest devices hardly send this: {', and '.join(reasons)}. Some devices lie or are "
        f"broken; chance alone does this in {found.false_alarms:.0%} of campaigns at most"
    )
    return [warning]


def _lies(campaign: Campaign, result: Result) -> Facts | None:
    """How far a bar can be off if `share` of the devices lie together, and how many may lie for
    an error of `error`."""
    if result.withheld:
        return None
    manifest = campaign.manifest
    return {
        "share": LIARS,
        "shift": lie_shift_of(manifest, result, LIARS),
        "error": TARGET,
        "share_for_error": share_for_shift_of(manifest, result, TARGET),
    }


def _numbers(attribute: Attribute, numbers: Numbers) -> Facts:
    """The share `cdf[j]` of the devices lies below `edges[j]`, the upper end of a bin."""
    ends = (attribute.edges or ())[1 : len(numbers.cdf) + 1]
    edges = [end if math.isfinite(end) else None for end in ends]
    quantiles = [quantile._asdict() for quantile in numbers.quantiles]
    return {
        "unit": attribute.unit,
        "edges": edges,
        **asdict(numbers),
        "quantiles": quantiles,
    }


# --- one campaign -------------------------------------------------------------------------------


def campaign_facts(store: Store, found: Campaign, directory: Path, now: float, last: int) -> Facts:
    """The status, what is asked with how much noise and why, and the latest rounds."""
    manifest, schedule = found.manifest, found.manifest.rounds
    mechanism = MECHANISMS[manifest.reporting]
    # Of all reports: where each value has a memo, of the reports of one.
    bound = manifest.eps_inf if mechanism.rules.memo_per_value else manifest.lifetime_epsilon
    link = join_link(directory, manifest) if found.closed is None else None
    as_stated = ("purpose", "owner", "contact", "eps_inf", "eps_1", "min_reports", "max_values")
    return {
        **campaign_status(store, found, now, examine(directory)),
        **{name: getattr(manifest, name) for name in as_stated},
        "digest": manifest.digest.hex(),
        "belief_one_report": largest_shift(manifest.eps_1),
        "belief_all_reports": largest_shift(bound),
        "first": instant(schedule.first),
        "period_seconds": schedule.period,
        "grace_seconds": schedule.grace,
        "expires": instant(manifest.expires),
        "simulation": known_truth(directory, found) is not None,
        "attributes": [_attribute(found, i) for i in range(len(manifest.attributes))],
        "latest_rounds": _rounds(store, found, now, last),
        "reporting": manifest.reporting,
        "caveat": mechanism.analysis.caveat,
        "lifetime_epsilon": manifest.lifetime_epsilon,
        "answers": schedule.each or None,
        "join": link if link is not None and is_for_others(link) else None,
    }


def _attribute(found: Campaign, index: int) -> Facts:
    """One question, and how its answers are randomised."""
    attribute, mechanism = found.manifest.attributes[index], found.manifest.mechanisms[index]
    one_report, all_reports = odds_sentences(mechanism, attribute.values[0])
    return {
        "name": attribute.name,
        "question": attribute.question,
        "values": list(attribute.values),
        "protocol": mechanism.protocol,
        "why": why(attribute, mechanism, found.manifest.budget),
        "one_report": one_report,
        "all_reports": all_reports,
        "changes": attribute.changes,
        "warnings": _warnings(found, attribute),
    }


def _rounds(store: Store, found: Campaign, now: float, last: int) -> list[Facts]:
    """The latest rounds, newest first. As many reports are expected as the fullest of the rounds
    before had, because a device reports in every round."""
    schedule, sealed = found.manifest.rounds, sealed_rounds(store, found)
    begun = -1 if now < schedule.first else (int(now) - schedule.first) // schedule.period
    newest = max(min(begun, schedule.count - 1), sealed - 1, *store.open_rounds(found.id))
    expected: dict[str, int | None] = {a.name: None for a in found.manifest.attributes}
    rows: list[Facts] = []
    for number in range(max(0, newest + 1 - 2 * last), newest + 1):
        is_sealed = number < sealed
        reports = (
            _reports(store, found, number)
            if is_sealed
            else filling(store, found, number)["reports"]
        )
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


def _round_state(found: Campaign, number: int, sealed: int, now: float) -> RoundState:
    schedule = found.manifest.rounds
    if number < sealed:
        return "sealed"
    if now < schedule.closes(number):
        return "open"
    return "grace" if now < schedule.deadline(number) else "due"


# --- one question over time ---------------------------------------------------------------------


def most_rounds(found: Campaign, index: int, most_rows: int) -> int:
    """How many rounds fit into one answer."""
    return max(1, most_rows // found.manifest.attributes[index].k)


def over_time(
    store: Store, found: Campaign, directory: Path, index: int, latest: Latest, *, cut: bool
) -> Facts:
    """One attribute's rounds, and all of them pooled.

    `cut` is whether rounds that were asked for did not fit into the answer.
    """
    last_sealed, (pooled, rounds) = store.last_sealed(found.id), latest
    asked, reporting = found.manifest.attributes[index], found.manifest.reporting
    return {
        "campaign": found.name,
        "attribute": asked.name,
        "question": asked.question,
        "values": list(asked.values),
        "sealed": sealed_rounds(store, found),
        "cut": cut,
        "rounds": [result_facts(found, r, last_sealed) for r in rounds],
        "pooled": None if pooled is None else result_facts(found, pooled, last_sealed),
        "truth": truth_of(directory, found, asked.name),
        "reporting": reporting,
        "caveat": MECHANISMS[reporting].analysis.caveat,
        "numeric": asked.edges is not None,
        "warnings": warnings(asked, reporting),
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
        shown = {r.last: shares(r)[found.place].value for r in rounds if not r.withheld}
        before, after = (seen.round for seen in found.change)
        change = {"from_round": before, "from_share": shown[before]}
        change |= {"to_round": after, "to_share": shown[after]}
    return {"value": values[found.place], "change": change}


# --- a simulation's true frequencies: nothing that collects from devices writes this file --------


def write_truth(directory: Path, campaign: str, frequencies: Mapping[str, Sequence[float]]) -> None:
    """Keep each attribute's true frequencies next to the data."""
    text = json.dumps({name: [float(f) for f in row] for name, row in frequencies.items()})
    write_durably(directory / f"truth-{campaign}.json", text)


def read_truth(directory: Path, campaign: str) -> dict[str, list[float]] | None:
    """The true frequencies by attribute, or None: then the campaign is real."""
    path = directory / f"truth-{campaign}.json"
    try:
        found = json.loads(path.read_bytes())
        return {str(name): [float(f) for f in row] for name, row in found.items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        raise StorageFailure(
            f"{path} does not hold a simulation's true frequencies; remove it, or simulate again"
        ) from None


def known_truth(directory: Path, found: Campaign) -> dict[str, list[float]] | None:
    """The true frequencies by attribute, of a simulation or of a trial, in which devices make
    their values up; None if the campaign is real."""
    if is_trial(found.manifest):
        return {a.name: made_up_frequencies(a.k) for a in found.manifest.attributes}
    return read_truth(directory, found.name)


def truth_of(directory: Path, found: Campaign, attribute: str) -> list[float] | None:
    """The true frequencies of one attribute, if they are known."""
    truth = (known_truth(directory, found) or {}).get(attribute)
    k = found.manifest.attributes[attribute_index(found, attribute)].k
    return truth if truth is not None and len(truth) == k else None
