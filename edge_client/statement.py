"""What leaves this device, in words and in bytes: facts for `join`, `show` and `status`.

`--json` prints them as they are; text.py and page.py turn them into text and HTML. Previews draw no
randomness: they are made by the code that encodes real reports, with the random part left blank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from edge_client.agent import DeviceState, Wait, due
from edge_client.clock import Clock, first_doubt
from edge_client.credentials import RememberedCredentials
from edge_client.explain import bound, how_often, words
from edge_client.language import message, say
from edge_client.policy import used
from edge_client.records import Invitation, Membership, Queued, Treatment
from edge_client.status import last_heartbeat
from protocol_spec import (
    Manifest,
    Rejected,
    Spending,
    Topics,
    decode_report,
    is_trial,
    make_report,
)

Facts = dict[str, Any]
"""Ready for JSON. The functions here that return them are the only place where keys are made."""

NEVER_LEAVES: Final = (
    message("your true value"),
    message("the values of the other attributes"),
    message("the host name or this agent's version"),
    message("the time inside the round at which your value was read"),
)
BROKER_SEES: Final = (
    message("every report"),
    message("this device's network address"),
    message("the name in the topic"),
    message("when it is connected"),
)


def invitation_facts(
    invitation: Invitation,
    device: str | None,
    *,
    credentials: Treatment = "none",
    operator_name: str | None = None,
    sources: Iterable[Facts] = (),
) -> Facts:
    """Everything an owner should see before agreeing."""
    manifest = invitation.manifest
    topics = Topics(manifest.campaign, invitation.namespace)
    return {
        **_about(manifest, invitation.labels),
        "whole_digest": invitation.whole_digest,
        "operator": manifest.operator.hex(),
        "operator_name": operator_name,
        "operator_verified": bool(invitation.operator),
        "broker": str(invitation.broker),
        "credentials": credentials,
        "labels": dict(invitation.labels),
        "topic": topics.report(device or "a-random-name"),
        "attributes": [attribute_facts(manifest, i) for i in range(len(manifest.attributes))],
        "sources": list(sources),
    }


def campaign_facts(client: DeviceState, membership: Membership) -> Facts:
    """What left, what is queued, what it cost: for `show`."""
    manifest, spent = membership.manifest, client.store.spent(membership)
    labels = RememberedCredentials(client.store.directory).labels(membership.broker)
    reports = [
        (row.fate, _report(membership, row)) for row in client.store.reports(membership.name)
    ]
    return {
        **_about(manifest, labels),
        "status": membership.status,
        "state": _state(membership, client.clock),
        "broker": membership.broker,
        "device": membership.device,
        "labels": labels,
        "topic": membership.topics.report(membership.device),
        "drawn_attribute": attribute_facts(manifest, membership.attribute_index),
        "drawn_rounds": _drawn_rounds(membership),
        "queued": [report for fate, report in reports if fate == "queued"],
        "sent": [report for fate, report in reports if fate != "queued"],
        "memos": spent.memos,
        "reports": spent.reports,
        "epsilon_exact": spent.exact,
        "epsilon_charged": spent.charged,
        "decisions": [
            {"at": _instant(at), "what": what}
            for at, what in client.store.decisions(membership.name)
        ],
    }


def joined_facts(membership: Membership) -> Facts:
    """What joining has settled; `rounds` is None where every round is answered."""
    return {
        "campaign": membership.name,
        "device": membership.device,
        "attribute": membership.attribute.name,
        "rounds": _drawn_rounds(membership),
        "trial": membership.is_trial,
        "warning": words(membership.manifest, membership.attribute_index)["warning"],
    }


def groups_facts(manifest: Manifest, labels: Mapping[str, str]) -> Facts | None:
    """The label by which results are published, and this device's group; None without groups."""
    groups = manifest.groups
    if groups is None:
        return None
    group = groups.names[groups.number(labels.get(groups.label))]
    return {"label": f"{groups.label} ({', '.join(groups.names)})", "group": group}


def _about(manifest: Manifest, labels: Mapping[str, str]) -> Facts:
    """Who asks, what for, until when, and what can be seen of it."""
    rounds, trial = manifest.rounds, is_trial(manifest)
    return {
        "campaign": manifest.campaign,
        "trial": trial,
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
        "groups": groups_facts(manifest, labels),
        "charge": 0.0 if trial else manifest.mechanisms[0].charge,
        "lifetime_epsilon": 0.0 if trial else manifest.lifetime_epsilon,
        "bound": bound(manifest),
        "never_leaves": [say(line) for line in NEVER_LEAVES],
        "broker_sees": [say(line) for line in BROKER_SEES],
    }


def attribute_facts(manifest: Manifest, index: int) -> Facts:
    """One question: its answers, its odds, and the bytes a report of it has."""
    attribute, octets = manifest.attributes[index], _preview(manifest, index)
    return {
        "attribute": attribute.name,
        "question": attribute.question,
        "together": [part.name for part in attribute.cross],
        "values": list(attribute.values),
        "protocol": manifest.mechanisms[index].protocol,
        **words(manifest, index),
        "bytes": " ".join(octets),
        "length": len(octets),
    }


def _preview(manifest: Manifest, index: int) -> list[str]:
    """The bytes of a first report, each in hex; ?? for those of the answer, which are noise."""
    mechanism = manifest.mechanisms[index]
    length, known = mechanism.answer_bytes, mechanism.first_answer_begins
    report = make_report(manifest, 0, index, known.ljust(length, b"\0"))
    octets = report.encode().hex(" ").split(" ")
    end = len(octets) - (len(report.body) - length)
    begin = end - (length - len(known))
    return octets[:begin] + ["??"] * (end - begin) + octets[end:]


def _report(membership: Membership, row: Queued) -> Facts:
    """A report decoded: exactly the bytes, and what they say."""
    report = decode_report(row.payload)
    if isinstance(report, Rejected):
        raise AssertionError("a stored report does not decode")
    mechanism = membership.manifest.mechanisms[report.attribute]
    values = membership.manifest.attributes[report.attribute].values
    support = mechanism.supported(report.body, membership.device)
    return {
        "round": row.round,
        "bytes": row.payload.hex(" "),
        "says": [values[i] for i in mechanism.counted.supported(support.body)],
        "fate": row.fate,
        "drawn": _instant(row.drawn),
        "deadline": _instant(row.deadline),
    }


def _drawn_rounds(membership: Membership) -> list[Facts] | None:
    """The rounds that this device drew to answer, for its owner; None for every round.

    The draw did not look at any value, and a report shows its round to all who see it.
    """
    if membership.drawn_rounds is None:
        return None
    opens = membership.manifest.rounds.opens
    return [{"round": n, "opens": _instant(opens(n))} for n in membership.drawn_rounds]


def _state(membership: Membership, clock: Clock) -> str:
    """Whether and why a report is or is not due."""
    allowed = due(membership, clock)
    if isinstance(allowed, Wait):
        return say(allowed.value)
    return say("round {round} is open", round=allowed.round)


def _instant(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show_facts(client: DeviceState, memberships: Sequence[Membership]) -> Facts:
    """Everything for `show`: these campaigns, and the ledger of all."""
    return {
        "campaigns": [campaign_facts(client, membership) for membership in memberships],
        "ledger": ledger_facts(client),
        "budgets": budget_facts(client),
        "clock": first_doubt([m.manifest for m in memberships], client.clock),
    }


def ledger_facts(client: DeviceState) -> list[Facts]:
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


def budget_facts(client: DeviceState) -> list[Facts]:
    """What was charged or is promised of what the owner allows: for each source ever asked for, and
    for all together (`*`). An allowance of None is no limit: JSON has no infinity."""
    store, policy, now = client.store, client.policy, client.clock.wall()
    charged = {source for line in store.ledger() for source in line.sources} - {"*"}
    names = sorted(charged | {source for m in client.memberships() for source in m.sources})
    limits = [(name, name, policy.lifetime_budget) for name in names]
    return [
        {
            "source": shown,
            "used": used(store, source, None, now),
            "allowed": None if math.isinf(limit) else limit,
        }
        for shown, source, limit in [*limits, ("*", None, policy.total_budget)]
    ]


def status_facts(client: DeviceState) -> Facts:
    """A few lines for people and monitors: nothing here depends on any value."""
    beat = last_heartbeat(client.store.directory)
    return {
        "agent": beat["state"] if beat else "not running",
        "pid": beat["pid"] if beat else None,
        "campaigns": [_campaign_status(client, m) for m in client.memberships()],
    }


def _campaign_status(client: DeviceState, membership: Membership) -> Facts:
    spent, name = _most_spent(client, membership), membership.name
    return {
        "campaign": name,
        "status": membership.status,
        "state": _state(membership, client.clock),
        "attribute": membership.attribute.name,
        "last_round": membership.last_round if membership.last_round >= 0 else None,
        "queued": len(client.store.reports(name, queued_only=True)),
        "reports": spent.reports,
        "epsilon_exact": spent.exact,
        "epsilon_charged": spent.charged,
        "epsilon_bound": 0.0 if membership.is_trial else membership.mechanism.lifetime_epsilon,
    }


def _most_spent(client: DeviceState, membership: Membership) -> Spending:
    """The most that this number of reports can have cost, whatever the values were.

    The number of memos would reveal how often the value changed; with one memo there is no doubt.
    """
    spent, most = client.store.spent(membership), membership.mechanism.memos
    if most <= 1 or membership.is_trial:
        return spent
    charged = min(spent.reports, most) * membership.mechanism.charge
    return Spending(0, spent.reports, charged, charged)
