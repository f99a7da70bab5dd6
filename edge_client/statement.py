"""What leaves this device, in words and in bytes: facts for `join`, `show` and `status`.

They are printed as JSON as they are, or turned into text or a page. Previews draw no randomness:
they are made by the code that encodes the real thing, the random part left blank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TypedDict

from edge_client.agent import Device, Wait, due
from edge_client.clock import Clock, first_doubt
from edge_client.explain import bound, how_often, words
from edge_client.language import message, say
from edge_client.policy import used
from edge_client.records import Fate, Invitation, Membership, Queued, Status, Treatment
from edge_client.sources import Unreadable
from edge_client.status import last_heartbeat
from protocol_spec import (
    Manifest,
    Rejected,
    Reporting,
    Spending,
    Topics,
    decode_report,
    make_report,
)


class AboutFacts(TypedDict):
    """Who asks, what for, until when."""

    campaign: str
    title: str
    purpose: str
    owner: str
    contact: str
    digest: str
    rounds: int
    period_seconds: int
    first_round: str
    ends: str
    eps_inf: float
    eps_1: float
    max_values: int
    reporting: Reporting
    answers: str
    lifetime_epsilon: float
    bound: str


class AttributeFacts(TypedDict):
    """One question: its answers, its odds, and the bytes a report of it has."""

    attribute: str
    question: str
    values: list[str]
    protocol: str
    one_report: str
    all_reports: str
    belief_one_report: str
    belief_all_reports: str
    not_hidden: list[str]
    warning: str
    bytes: str
    length: int


class SourceFacts(TypedDict):
    """An attribute without a source that can be read here: why, and lines to add."""

    attribute: str
    problem: str
    lines: str


class InvitationFacts(AboutFacts):
    """Everything an owner should see before agreeing."""

    whole_digest: bool
    operator: str
    operator_name: str | None
    operator_verified: bool
    broker: str
    credentials: Treatment
    topic: str
    attributes: list[AttributeFacts]
    never_leaves: list[str]
    broker_sees: list[str]
    sources: list[SourceFacts]


class DrawnRoundFacts(TypedDict):
    """A round that this device drew to answer."""

    round: int
    opens: str


class JoinedFacts(TypedDict):
    """What joining has settled; `rounds` is None where every round is answered."""

    campaign: str
    device: str
    attribute: str
    rounds: list[DrawnRoundFacts] | None
    warning: str


class ReportFacts(TypedDict):
    """A report decoded: exactly the bytes, and what they say."""

    round: int
    bytes: str
    says: list[str]
    fate: Fate
    drawn: str
    deadline: str


class DecisionFacts(TypedDict):
    """What was decided about a campaign, and when."""

    at: str
    what: str


class CampaignFacts(AboutFacts):
    """What left, what is queued, what it cost."""

    status: Status
    state: str
    broker: str
    device: str
    topic: str
    drawn_attribute: AttributeFacts
    drawn_rounds: list[DrawnRoundFacts] | None
    queued: list[ReportFacts]
    sent: list[ReportFacts]
    memos: int
    reports: int
    epsilon_exact: float
    epsilon_charged: float
    decisions: list[DecisionFacts]
    never_leaves: list[str]
    broker_sees: list[str]


class LedgerFacts(TypedDict):
    """One charge."""

    at: str
    campaign: str
    source: str
    epsilon: float
    reason: str


class BudgetFacts(TypedDict):
    """What was charged or is promised, of what the owner allows: None is no limit.

    The source `*` is all sources together.
    """

    source: str
    used: float
    allowed: float | None


class ShowFacts(TypedDict):
    """All that `show` tells."""

    campaigns: list[CampaignFacts]
    ledger: list[LedgerFacts]
    budgets: list[BudgetFacts]
    clock: str


class CampaignStatus(TypedDict):
    """One campaign in a line."""

    campaign: str
    status: Status
    state: str
    attribute: str
    last_round: int | None
    queued: int
    reports: int
    epsilon_exact: float
    epsilon_charged: float
    epsilon_bound: float


class StatusFacts(TypedDict):
    """The running agent and its campaigns, in a few lines."""

    agent: str
    pid: int | None
    campaigns: list[CampaignStatus]


# --- made from the store -------------------------------------------------------------------------


NEVER_LEAVES = (
    message("your true value"),
    message("the values of the other attributes"),
    message("the host name or this agent's version"),
    message("the time inside the round at which your value was read"),
)

BROKER_SEES = (
    message("every report"),
    message("this device's network address"),
    message("the name in the topic"),
    message("when it is connected"),
)


def about(manifest: Manifest) -> AboutFacts:
    """Who asks, what for, until when."""
    rounds = manifest.rounds
    return {
        "campaign": manifest.campaign,
        "title": manifest.title,
        "purpose": manifest.purpose,
        "owner": manifest.owner,
        "contact": manifest.contact,
        "digest": manifest.digest.hex(),
        "rounds": rounds.count,
        "period_seconds": rounds.period,
        "first_round": _instant(rounds.first),
        "ends": _instant(manifest.expires),
        "eps_inf": manifest.eps_inf,
        "eps_1": manifest.eps_1,
        "max_values": manifest.max_values,
        "reporting": manifest.reporting,
        "answers": how_often(manifest),
        "lifetime_epsilon": manifest.lifetime_epsilon,
        "bound": bound(manifest),
    }


def attribute_facts(manifest: Manifest, index: int) -> AttributeFacts:
    """One question: its answers, its odds, and the bytes a report of it has."""
    attribute, told = manifest.attributes[index], words(manifest, index)
    octets = _preview(manifest, index)
    return {
        "attribute": attribute.name,
        "question": attribute.question,
        "values": list(attribute.values),
        "protocol": manifest.mechanisms[index].protocol,
        "one_report": told.one_report,
        "all_reports": told.all_reports,
        "belief_one_report": told.belief_one_report,
        "belief_all_reports": told.belief_all_reports,
        "not_hidden": list(told.not_hidden),
        "warning": told.warning,
        "bytes": " ".join(octets),
        "length": len(octets),
    }


def _preview(manifest: Manifest, index: int) -> list[str]:
    """The bytes of a first report, each in hex; ?? for those of the answer, which are noise."""
    noise = manifest.mechanisms[index].answer_bytes
    level = b"\1" if manifest.reporting == "nested" else b""  # of the first report; no noise
    report = make_report(manifest, 0, index, level.ljust(noise, b"\0"))
    octets, behind = report.encode().hex(" ").split(" "), len(report.body) - noise
    answer = ["??"] * (noise - len(level))
    return octets[: len(octets) - behind - len(answer)] + answer + octets[len(octets) - behind :]


def invitation_facts(
    invitation: Invitation,
    device: str | None,
    *,
    credentials: Treatment = "none",
    operator_name: str | None = None,
    sources: Iterable[Unreadable] = (),
) -> InvitationFacts:
    """Everything an owner should see before agreeing."""
    manifest = invitation.manifest
    topics = Topics(manifest.campaign, invitation.namespace)
    name = device or "a-random-name"
    return {
        **about(manifest),
        "whole_digest": invitation.whole_digest,
        "operator": manifest.operator.hex(),
        "operator_name": operator_name,
        "operator_verified": bool(invitation.operator),
        "broker": str(invitation.broker),
        "credentials": credentials,
        "topic": topics.report(name),
        "attributes": [attribute_facts(manifest, i) for i in range(len(manifest.attributes))],
        "never_leaves": [say(line) for line in NEVER_LEAVES],
        "broker_sees": [say(line) for line in BROKER_SEES],
        "sources": [
            {"attribute": each.attribute, "problem": each.problem, "lines": each.lines}
            for each in sources
        ],
    }


def campaign_facts(client: Device, membership: Membership) -> CampaignFacts:
    """What left, what is queued, what it cost: for `show`."""
    spent = client.store.spent(membership)
    rows = client.store.reports(membership.name)
    topics = membership.topics
    return {
        **about(membership.manifest),
        "status": membership.status,
        "state": state_of(membership, client.clock),
        "broker": membership.broker,
        "device": membership.device,
        "topic": topics.report(membership.device),
        "drawn_attribute": attribute_facts(membership.manifest, membership.attribute_index),
        "drawn_rounds": drawn_rounds(membership),
        "queued": [report_facts(membership, row) for row in rows if row.fate == "queued"],
        "sent": [report_facts(membership, row) for row in rows if row.fate != "queued"],
        "memos": spent.memos,
        "reports": spent.reports,
        "epsilon_exact": spent.exact,
        "epsilon_charged": spent.charged,
        "decisions": [
            {"at": _instant(at), "what": what}
            for at, what in client.store.decisions(membership.name)
        ],
        "never_leaves": [say(line) for line in NEVER_LEAVES],
        "broker_sees": [say(line) for line in BROKER_SEES],
    }


def report_facts(membership: Membership, row: Queued) -> ReportFacts:
    """A report decoded: exactly the bytes, and what they say."""
    report = decode_report(row.payload)
    if isinstance(report, Rejected):
        raise AssertionError("a stored report does not decode")
    way = membership.manifest.mechanisms[report.attribute]
    values = membership.manifest.attributes[report.attribute].values
    says = way.counted.supported(way.supported(report.body, membership.device).body)
    return {
        "round": row.round,
        "bytes": row.payload.hex(" "),
        "says": [values[i] for i in says],
        "fate": row.fate,
        "drawn": _instant(row.drawn),
        "deadline": _instant(row.deadline),
    }


def state_of(membership: Membership, clock: Clock) -> str:
    """Whether and why a report is or is not due."""
    allowed = due(membership, clock)
    if isinstance(allowed, Wait):
        return say(allowed.value)
    return say("round {round} is open", round=allowed.round)


def status_facts(client: Device) -> StatusFacts:
    """A few lines for people and monitors."""
    beat = last_heartbeat(client.store.directory)
    return {
        "agent": beat["state"] if beat else "not running",
        "pid": beat["pid"] if beat else None,
        "campaigns": [_campaign_status(client, m) for m in client.memberships()],
    }


def _campaign_status(client: Device, membership: Membership) -> CampaignStatus:
    """For monitors: nothing here depends on any value; `show` has what was really booked."""
    spent, name = _at_most_spent(client, membership), membership.name
    return {
        "campaign": name,
        "status": membership.status,
        "state": state_of(membership, client.clock),
        "attribute": membership.attribute.name,
        "last_round": membership.last_round if membership.last_round >= 0 else None,
        "queued": len(client.store.reports(name, queued_only=True)),
        "reports": spent.reports,
        "epsilon_exact": spent.exact,
        "epsilon_charged": spent.charged,
        "epsilon_bound": membership.way.lifetime_epsilon,
    }


def _at_most_spent(client: Device, membership: Membership) -> Spending:
    """What so many reports can have cost, whatever the values were: with one memo, what they did.

    How many memos there are tells how often the value changed.
    """
    spent, most = client.store.spent(membership), membership.way.memos
    if most <= 1:
        return spent
    charged = min(spent.reports, most) * membership.manifest.eps_inf
    return Spending(0, spent.reports, charged, charged)


def show_facts(client: Device, memberships: Sequence[Membership]) -> ShowFacts:
    """All that `show` tells: these campaigns, and the ledger of all."""
    campaigns = [campaign_facts(client, membership) for membership in memberships]
    return {
        "campaigns": campaigns,
        "ledger": ledger_facts(client),
        "budgets": budget_facts(client),
        "clock": first_doubt([m.manifest for m in memberships], client.clock),
    }


def joined_facts(membership: Membership) -> JoinedFacts:
    """What joining has settled."""
    return {
        "campaign": membership.name,
        "device": membership.device,
        "attribute": membership.attribute.name,
        "rounds": drawn_rounds(membership),
        "warning": words(membership.manifest, membership.attribute_index).warning,
    }


def drawn_rounds(membership: Membership) -> list[DrawnRoundFacts] | None:
    """The rounds that this device drew to answer, for its owner; None for every round.

    The draw did not look at any value, and a report shows its round to all who see it.
    """
    if membership.drawn_rounds is None:
        return None
    opens = membership.manifest.rounds.opens
    return [
        {"round": number, "opens": _instant(opens(number))} for number in membership.drawn_rounds
    ]


def budget_facts(client: Device) -> list[BudgetFacts]:
    """What is used up or promised: of each source ever asked for, and of all together."""
    store, policy, now = client.store, client.policy, client.clock.wall()
    charged = {line.source for line in store.ledger()} - {"*"}
    names = sorted(charged | {m.attribute.name for m in client.memberships()})
    each: list[BudgetFacts] = [
        {
            "source": name,
            "used": used(store, name, None, now),
            "allowed": _finite(policy.lifetime_budget),
        }
        for name in names
    ]
    in_all = used(store, None, None, now)
    return [*each, {"source": "*", "used": in_all, "allowed": _finite(policy.total_budget)}]


def _finite(limit: float) -> float | None:
    """JSON has no infinity."""
    return None if math.isinf(limit) else limit


def ledger_facts(client: Device) -> list[LedgerFacts]:
    """Every charge, also of campaigns since forgotten."""
    return [
        {
            "at": _instant(line.at),
            "campaign": line.campaign,
            "source": line.source,
            "epsilon": line.epsilon,
            "reason": line.reason,
        }
        for line in client.store.ledger()
    ]


def _instant(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
