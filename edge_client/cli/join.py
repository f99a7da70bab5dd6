"""`join`: show what a campaign asks, ask the owner, and join it or not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click

from edge_client.cli.common import agree_or_exit, command, naming_the_file, open_client
from edge_client.clock import doubt, first_round_to_come
from edge_client.credentials import Remembered
from edge_client.errors import BrokerUnreachable, SettingsError, as_edge_errors
from edge_client.language import ENGLISH, in_language, message, say
from edge_client.records import Invitation
from edge_client.settings import REMEMBERED, Settings
from edge_client.status import last_heartbeat
from protocol_spec import DEFAULT_NAMESPACE, Manifest, ManifestError, is_trial
from protocol_spec.programs.cli import AS_JSON, print_facts, typed
from protocol_spec.programs.output import quoted

if TYPE_CHECKING:
    from edge_client.client import EdgeClient
    from edge_client.statement import Facts
    from protocol_spec.programs.invitation import DeviceInvitation

_KEPT: Final = (
    "This device is {} at {}. The invitation names no campaign: join one with its link, as in: "
    "allomfree-edge join LINK"
)
OF_CREDENTIALS = REMEMBERED | {"credentials_for"}  # options that later commands do not need


@command
@click.argument("address", required=False)
@click.option(
    "--manifest", type=click.Path(path_type=Path), help="Manifest file instead of ADDRESS."
)
@click.option("--broker", help="With --manifest: where to report, as mqtts://host.")
@click.option(
    "--digest",
    metavar="HEX",
    help="The manifest's whole digest, where ADDRESS does not name all of it.",
)
@click.option("--namespace", default=DEFAULT_NAMESPACE, help="With --manifest: the topics' root.")
@click.option("--yes", is_flag=True, help="Agree without being asked, for fleets.")
@click.option("--preview", is_flag=True, help="Only show what joining would mean.")
@click.option("--again", is_flag=True, help="Join although this device was forgotten there.")
@click.option("--timeout", default=20.0, show_default=True, help="Seconds to wait for the broker.")
@AS_JSON
def join(
    settings: Settings,
    address: str | None,
    manifest: Path | None,
    broker: str | None,
    digest: str | None,
    namespace: str,
    yes: bool,
    preview: bool,
    again: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Read what a campaign asks, and agree to it or not.

    ADDRESS is the campaign's link, or the invitation file of this device; with - the invitation is
    read from standard input.

    \b
    allomfree-edge join kitchen.invitation
    allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f809
    allomfree-edge join --manifest heat.toml --broker mqtt://localhost --yes
    """
    loaded = _manifest(address, manifest, broker)
    with ExitStack() as stack:
        stack.enter_context(naming_the_file(settings))
        invited = None if address is None else given_invitation(address, time.time())
        if invited is None:
            client = stack.enter_context(open_client(settings))
        else:
            files = Path(stack.enter_context(TemporaryDirectory()))
            known = open_client(settings, known=invited.store(files), known_by=invited.brokers)
            client = stack.enter_context(known)
            check_name(client, invited)
            address = invited.link
            if not address:
                client.remembered.keep(invited)
                click.echo(_KEPT.format(invited.username, invited.broker))
                return
        invitation = _fetched(
            invited,
            lambda: client.invitation(
                address,
                manifest=loaded,
                broker=broker,
                namespace=namespace,
                digest=digest,
                timeout=timeout,
                again=again,
                check=not preview,
            ),
        )
        labels = invited.labels if invited else client.remembered.labels(invitation.broker)
        invitation = replace(invitation, labels=labels)
        if preview:
            _preview(client, settings, invitation, as_json)
            client.check(invitation, again=again)
            return
        with in_language(settings.owner_language):
            # With --json, standard output is one object.
            _explain(client, settings, invitation, quiet=as_json and yes, err=as_json)
            if not yes:
                _ask(client, invitation.manifest.campaign)
        if invited is not None:
            client.remembered.keep(invited)
        else:
            _remember(client, settings, invitation)
        membership = client.join(invitation, again=again)
        from edge_client import statement, text  # noqa: PLC0415

        with in_language(ENGLISH if as_json else settings.owner_language):
            print_facts(statement.joined_facts(membership), as_json, text.joined_text)
            if as_json:
                return
            if last_heartbeat(settings.state_dir):
                click.echo(say("The running agent will pick it up."))
            else:
                run = typed("allomfree-edge", "run", without=OF_CREDENTIALS)
                click.echo(say("Next: {command}", command=run))


# --- a device's invitation -----------------------------------------------------------------------


def given_invitation(address: str, now: float) -> DeviceInvitation | None:
    """The invitation in a file, in a link or on standard input; None for a campaign's address."""
    from protocol_spec.programs import invitation as shared  # noqa: PLC0415 - only to join

    with as_edge_errors():
        if address == "-":
            found = shared.parse_device_invitation(sys.stdin.read(shared.LARGEST), "what was read")
        elif address.startswith(shared.SCHEME):
            found = shared.parse_device_invitation(address)
        elif address.endswith(shared.ENDING) or ("://" not in address and Path(address).is_file()):
            found = shared.read_invitation(Path(address))
        elif "://" not in address:
            raise SettingsError(
                f"there is no file {quoted(address)}, and it is not an address. Nothing was drawn "
                "or sent. Give the invitation file, or the campaign's address; write it like "
                "mqtts://broker.example/allomfree/home-heat-1a2b3c4d"
            )
        else:
            return None
    if found.expires is not None and found.expires < now:
        raise SettingsError(
            f"the invitation expired at {_instant(found.expires)}, and this device's clock says "
            f"{_instant(now)}. Nothing was drawn or sent. If the clock is right, ask whoever "
            "invited you for a new invitation"
        )
    return found


def check_name(client: EdgeClient, invited: DeviceInvitation) -> None:
    """A device has one name at a broker: under a second one it could be counted twice."""
    for member in client.memberships():
        if member.broker in invited.brokers and member.device != invited.username:
            raise SettingsError(
                f"this device takes part in {member.name} as {member.device}, and the invitation "
                f"is for {invited.username}: it was made for another device. Nothing was drawn or "
                "sent. Use it there; to give this device a new name, first: allomfree-edge forget"
            )


def _fetched(invited: DeviceInvitation | None, fetch: Callable[[], Invitation]) -> Invitation:
    try:
        return fetch()
    except BrokerUnreachable as error:
        if invited is None or "refused the connection" not in str(error):
            raise
        raise BrokerUnreachable(
            f"{str(error).partition('. Check --')[0]}. Nothing was drawn or sent. The invitation "
            f"of {invited.username} is not valid at this broker, or no longer: it has "
            "expired or was revoked. Ask whoever invited you for a new one"
        ) from None


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _manifest(address: str | None, file: Path | None, broker: str | None) -> Manifest | None:
    """What --manifest names, if it is given in place of an address."""
    if address is None and file is None:
        raise SettingsError(
            "which campaign? Give the invitation file, or the campaign's address, as in "
            "allomfree-edge join mqtts://broker.example/allomfree/home-heat-1a2b3c4d, or "
            "--manifest FILE and --broker"
        )
    if (file is None) != (broker is None):
        raise SettingsError("--manifest and --broker go together: what is asked, and where to send")
    if address is not None and file is not None:
        raise SettingsError("give an ADDRESS, or --manifest and --broker, not both")
    try:
        return None if file is None else Manifest.from_file(file)
    except ManifestError as error:
        raise SettingsError(f"{file} is not a valid manifest; nothing was sent.\n{error}") from None


def _facts(client: EdgeClient, settings: Settings, invitation: Invitation) -> Facts:
    from edge_client import statement  # noqa: PLC0415 - `run` does not need it
    from edge_client.sources import unreadable  # noqa: PLC0415

    connector, broker, asked = client.connector, invitation.broker, invitation.manifest
    return statement.invitation_facts(
        invitation,
        connector.username(broker),
        credentials=connector.treatment(broker),
        operator_name=settings.policy.operator_name(invitation.operator),
        sources=[] if is_trial(asked) else unreadable(asked.attributes, settings.sources),
    )


def _preview(client: EdgeClient, settings: Settings, invitation: Invitation, as_json: bool) -> None:
    from edge_client.text import asked_text  # noqa: PLC0415

    with in_language(ENGLISH if as_json else settings.owner_language):
        facts = _facts(client, settings, invitation)
        print_facts(facts, as_json, lambda f: asked_text(f, settings.config))


def _explain(
    client: EdgeClient, settings: Settings, invitation: Invitation, *, quiet: bool, err: bool
) -> None:
    """What joining would mean, and what speaks against it now."""
    from edge_client import text  # noqa: PLC0415

    facts = _facts(client, settings, invitation)
    if not quiet:
        click.echo(text.asked_text(facts, settings.config), err=err)
    elif facts["sources"]:
        click.echo(text.sources_text(facts["sources"], settings.config), err=True)
    if why := doubt(invitation.manifest, client.clock):
        click.echo(say("Clock: {doubt}.", doubt=why), err=True)
    if begins := first_round_to_come(invitation.manifest, client.clock):
        click.echo(say("The first round begins at {first}.", first=begins), err=True)


def _ask(client: EdgeClient, name: str) -> None:
    """Continue only if the owner agrees; after a no, a device that had joined before stays."""
    declined, hint = say("Not joined; nothing was drawn, sent or spent."), ""
    if any(m.name == name and m.status != "left" for m in client.memberships()):
        stays = message(
            "This device has already joined {name} and stays in it; nothing was changed."
        )
        leave = typed("allomfree-edge", "leave", name, without=OF_CREDENTIALS)
        declined, hint = say(stays, name=name), say("Stop with: {command}", command=leave)
    agree_or_exit(f"\n{say('Do you agree?')}", declined, hint)


def _remember(client: EdgeClient, settings: Settings, invitation: Invitation) -> None:
    """Keep the credentials that were typed for `run`, for this broker alone (P2)."""
    given, broker = settings.to_remember(), invitation.broker
    if given is None:
        return
    if not client.connector.will_know(broker):  # they are for another one
        kept = client.remembered.of(broker) or Remembered()
        given = replace(kept, ca_file=given.ca_file or kept.ca_file)
    client.remembered.remember(broker, given)
