"""What leaves this device, in words and in bytes: for `join`, `show` and `status`.

Facts are printed as JSON or, by `edge_client.show.text`, as text. Previews draw no randomness: they
are made by the code that encodes the real thing, the random part left blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from edge_client.agent import Wait, due
from edge_client.client import EdgeClient
from edge_client.clock import Clock
from edge_client.heartbeat import last_heartbeat
from edge_client.records import Invitation, Membership, Queued
from edge_client.show.facts import (
    AboutFacts,
    AttributeFacts,
    CampaignFacts,
    CampaignStatus,
    DrawnRoundFacts,
    InvitationFacts,
    JoinedFacts,
    LedgerFacts,
    ReportFacts,
    ShowFacts,
    StatusFacts,
)
from edge_client.show.ways import bound, how_often, period_text, words
from protocol_spec import Manifest, Rejected, Topics, decode_report, make_report

NEVER_LEAVES = (
    "your true value",
    "the values of the other attributes",
    "the host name or this agent's version",
    "the time inside the round at which your value was read",
)

BROKER_SEES = (
    "every report",
    "this device's network address",
    "the name in the topic",
    "when it is connected",
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
        "answers": how_often(manifest, period_text(rounds.period)),
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
        "protocol": manifest.ways[index].protocol,
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
    noise = manifest.ways[index].answer_bytes
    level = b"\1" if manifest.reporting == "nested" else b""  # of the first report; no noise
    report = make_report(manifest, 0, index, level.ljust(noise, b"\0"))
    octets, behind = report.encode().hex(" ").split(" "), len(report.body) - noise
    answer = ["??"] * (noise - len(level))
    return octets[: len(octets) - behind - len(answer)] + answer + octets[len(octets) - behind :]


def invitation_facts(invitation: Invitation, device: str | None) -> InvitationFacts:
    """Everything an owner should see before agreeing."""
    manifest = invitation.manifest
    topics = Topics(manifest.campaign, invitation.namespace)
    name = device or "a-random-name"
    return {
        **about(manifest),
        "broker": str(invitation.broker),
        "topic": topics.report(name),
        "attributes": [attribute_facts(manifest, i) for i in range(len(manifest.attributes))],
        "never_leaves": list(NEVER_LEAVES),
        "broker_sees": list(BROKER_SEES),
    }


def campaign_facts(client: EdgeClient, membership: Membership) -> CampaignFacts:
    """What left, what is queued, what it cost: for `show`."""
    spent = client.store.spent(membership)
    rows = client.store.outbox.rows(membership.name)
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
            for at, what in client.store.campaigns.decisions(membership.name)
        ],
        "never_leaves": list(NEVER_LEAVES),
        "broker_sees": list(BROKER_SEES),
    }


def report_facts(membership: Membership, row: Queued) -> ReportFacts:
    """A report decoded: exactly the bytes, and what they say."""
    report = decode_report(row.payload)
    if isinstance(report, Rejected):
        raise AssertionError("a stored report does not decode")
    way = membership.manifest.ways[report.attribute]
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
    return allowed.value if isinstance(allowed, Wait) else f"round {allowed.round} is open"


def status_facts(client: EdgeClient) -> StatusFacts:
    """A few lines for people and monitors."""
    beat = last_heartbeat(client.store.directory)
    return {
        "agent": beat["state"] if beat else "not running",
        "pid": beat["pid"] if beat else None,
        "campaigns": [_campaign_status(client, m) for m in client.memberships()],
    }


def _campaign_status(client: EdgeClient, membership: Membership) -> CampaignStatus:
    spent, name = client.store.spent(membership), membership.name
    return {
        "campaign": name,
        "status": membership.status,
        "state": state_of(membership, client.clock),
        "attribute": membership.attribute.name,
        "last_round": membership.last_round if membership.last_round >= 0 else None,
        "queued": len(client.store.outbox.rows(name, queued_only=True)),
        "reports": spent.reports,
        "epsilon_exact": spent.exact,
        "epsilon_charged": spent.charged,
        "epsilon_bound": membership.way.lifetime_epsilon,
    }


def show_facts(client: EdgeClient, memberships: Sequence[Membership]) -> ShowFacts:
    """All that `show` tells: these campaigns, and the ledger of all."""
    campaigns = [campaign_facts(client, membership) for membership in memberships]
    return {"campaigns": campaigns, "ledger": ledger_facts(client)}


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


def ledger_facts(client: EdgeClient) -> list[LedgerFacts]:
    """Every charge, also of campaigns since forgotten."""
    return [
        {
            "at": _instant(line.at),
            "campaign": line.campaign,
            "source": line.source,
            "epsilon": line.epsilon,
            "reason": line.reason,
        }
        for line in client.store.ledger.lines()
    ]


def _instant(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
