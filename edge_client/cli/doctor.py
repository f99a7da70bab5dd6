"""`doctor`: checks, each with its finding and, where it failed, the next step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from edge_client.cli.common import command, open_client
from edge_client.client import EdgeClient
from edge_client.clock import doubt, first_round_to_come, is_impossible
from edge_client.errors import SourceFailure
from edge_client.link import Connector, connect
from edge_client.records import Membership
from edge_client.settings import Settings
from edge_client.sources import build_all, reader
from protocol_spec import AllomfreeError, UnknownValue
from protocol_spec.programs.cli import AS_JSON, Finding, completed, print_facts
from protocol_spec.programs.settings import parse_broker


@command
@AS_JSON
def doctor(settings: Settings, as_json: bool) -> None:
    """Check state, clock, sources, brokers and policy, and name the next step.

    \b
    allomfree-edge doctor
    """
    findings = [replace(f, text=completed(f.text)) for f in examine(settings)]
    print_facts([f.facts() for f in findings], as_json, lambda _: "\n".join(map(str, findings)))
    if any(not f.ok for f in findings):
        sys.exit(1)


def examine(settings: Settings) -> list[Finding]:
    """All checks. Nothing is drawn, and no value is sent or shown."""
    try:
        client = open_client(settings)
    except AllomfreeError as error:
        return [Finding("state", False, str(error))]
    with client:
        findings = [Finding("state", True, f"{client.store.path} is sound and private")]
        members = client.memberships()
        if not members:
            findings.append(Finding("campaigns", False, "none joined; see allomfree-edge join"))
        findings += [clock_finding(client, m) for m in members]
        findings += [_policy(client, m) for m in members]
        findings += _sources(settings, members)
        findings += _credentials(client)
        findings += _brokers(client.connector, members)
        return findings


def clock_finding(client: EdgeClient, membership: Membership) -> Finding:
    """Whether the clock can be right for a campaign, and who vouches for it."""
    why = doubt(membership.manifest, client.clock)
    if is_impossible(membership.manifest, client.clock):
        return Finding("clock", False, why)
    shown = datetime.fromtimestamp(client.clock.wall(), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    but = f", but {why}" if why else ""
    begins = first_round_to_come(membership.manifest, client.clock)
    when = f"; the first round begins at {begins}" if begins else ""
    return Finding("clock", True, f"{shown} is plausible for {membership.name}{when}{but}")


def _policy(client: EdgeClient, membership: Membership) -> Finding:
    try:
        client.agent.policy.check(membership.manifest)
        client.agent.policy.check_operator(membership.name, membership.operator)
    except AllomfreeError as error:
        return Finding("policy", False, str(error))
    return Finding("policy", True, f"allows {membership.name}")


def _sources(settings: Settings, members: list[Membership]) -> Iterator[Finding]:
    try:
        read = reader(build_all(settings.sources, settings.config))
    except AllomfreeError as error:
        yield Finding("sources", False, str(error))
        return
    for attribute in (part for member in members for part in member.attribute.parts):
        try:
            attribute.index_of(read(attribute.name))
            yield Finding("source", True, f"{attribute.name} gives a value of its domain")
        except (SourceFailure, UnknownValue) as error:
            yield Finding("source", False, str(error))


def _credentials(client: EdgeClient) -> Iterator[Finding]:
    """Which brokers see who this device is."""
    try:
        kept = client.remembered.brokers()
    except AllomfreeError as error:
        yield Finding("credentials", False, str(error))
        return
    if kept:
        yield Finding("credentials", True, f"remembered for {', '.join(kept)}, each for its own")
    if not client.credentials.identify:
        return
    if brokers := client.connector.brokers():
        yield Finding("credentials", True, f"yours are shown to {', '.join(brokers)} and no other")
    else:
        text = 'yours are shown to no broker; name theirs: credentials_for = "mqtts://HOST"'
        yield Finding("credentials", False, text)


def _brokers(connector: Connector, members: list[Membership]) -> Iterator[Finding]:
    for broker in sorted({m.broker for m in members}):
        url = parse_broker(broker)
        try:
            link = connector.link(url)
            connect(link)
        except AllomfreeError as error:
            yield Finding("broker", False, f"{error}{connector.note(url)}")
        else:
            with suppress(OSError):
                link.close()
            kind = "encrypted" if url.tls else "this machine, not encrypted"
            yield Finding("broker", True, f"{broker} answers ({kind})")
