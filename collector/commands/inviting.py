"""`invite`: the link by which owners join a campaign, and its QR code."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TypedDict

from collector.brokers.directory import BrokerDirectory
from collector.commands.options import CAMPAIGN, command, show
from collector.data_dir import read_store
from collector.errors import CollectorError
from collector.joining import is_for_others, remember_address
from collector.settings import Settings
from collector.show.qr import terminal_code
from collector.show.terminal import Ink, ink_of
from protocol_spec.programs.commands import AS_JSON
from protocol_spec.programs.output import allow_colours


class InviteFacts(TypedDict):
    """What `invite --json` prints."""

    campaign: str
    digest: str
    link: str


@command
@CAMPAIGN
@AS_JSON
def invite(settings: Settings, campaign: str | None, as_json: bool) -> None:
    """Print the link by which owners join a campaign, with its QR code.

    \b
    allomfree-collector invite
    allomfree-collector invite home-heat --json
    """
    with closing(read_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
    if found.closed is not None:
        raise CollectorError(f"{found.name} is closed: nobody can join it any more")
    link = f"{remember_address(settings)}/{found.manifest.full_name}"
    digest = found.manifest.digest.hex()
    facts: InviteFacts = {"campaign": found.name, "digest": digest, "link": link}
    ink = ink_of(sys.stdout, os.environ)
    if ink.colour:
        allow_colours()  # names and addresses hold no control characters
    elsewhere = [] if is_for_others(link) else _for_others(settings)
    show(facts, as_json, lambda told: _text(told, elsewhere, ink))


def _for_others(settings: Settings) -> list[str]:
    """How to let other machines in, where the broker is for this one."""
    only = "That is an address of this very machine. For devices elsewhere,"
    if settings.broker is not None:
        return [f"{only} name the broker as they reach it, as in --broker mqtts://broker.example"]
    kind, step = "nats", "set up a broker"
    if BrokerDirectory.exists(settings.broker_dir):
        kind, step = BrokerDirectory.load(settings.broker_dir).plan.kind, "configure it again"
    return [
        f"{only} {step}, NAME being this machine's name or address in their network:",
        f"    allomfree-collector broker-config {kind} --host NAME",
    ]


def _text(facts: InviteFacts, elsewhere: list[str], ink: Ink) -> str:
    link = facts["link"]
    lines = [f"Join {facts['campaign']} with:", f"    allomfree-edge join {link}", ""]
    if elsewhere:
        return "\n".join([*lines[:-1], *elsewhere])
    told = "The link names the campaign by its whole digest: no other can be taken for it."
    code = terminal_code(link, colours=ink.colour)
    return "\n".join([*lines, code, "", link, told])
