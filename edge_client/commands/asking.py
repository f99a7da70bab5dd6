"""The conversation of `join`: what it would mean, the question, and what was settled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from edge_client.commands.common import agree_or_exit
from edge_client.heartbeat import last_heartbeat
from edge_client.language import ENGLISH, message, say, speaking
from edge_client.plausibility import doubt, first_round_to_come
from edge_client.records import Invitation, Membership
from edge_client.remembered import Remembered
from edge_client.settings import REMEMBERED, Settings
from protocol_spec.programs.commands import show as print_facts
from protocol_spec.programs.pasting import typed

if TYPE_CHECKING:
    from edge_client.client import EdgeClient
    from edge_client.show.facts import InvitationFacts


@dataclass(frozen=True, slots=True)
class Asking:
    """One invitation, and the owner who is asked."""

    client: EdgeClient
    settings: Settings
    invitation: Invitation
    as_json: bool

    def preview(self) -> None:
        """Only show what joining would mean."""
        from edge_client.show.asked import asked_text  # noqa: PLC0415 - `run` does not need it

        with speaking(ENGLISH if self.as_json else self.settings.speech):
            print_facts(self._facts(), self.as_json, lambda f: asked_text(f, self.settings.config))

    def tell(self, *, quiet: bool) -> None:
        """What joining would mean, and what speaks against it now."""
        from edge_client.show import asked, phrases  # noqa: PLC0415

        with speaking(self.settings.speech):
            facts, config = self._facts(), self.settings.config
            if not quiet:
                click.echo(asked.asked_text(facts, config), err=self.as_json)
            elif facts["sources"]:
                click.echo(asked.sources_text(facts["sources"], config), err=True)
            if why := doubt(self.invitation.manifest, self.client.clock):
                click.echo(phrases.clock_text(why), err=True)
            if begins := first_round_to_come(self.invitation.manifest, self.client.clock):
                click.echo(say("The first round begins at {first}.", first=begins), err=True)

    def ask(self) -> None:
        """Go on only if the owner agrees."""
        with speaking(self.settings.speech):
            agree_or_exit(f"\n{say('Do you agree?')}", *self._otherwise())

    def _otherwise(self) -> tuple[str, ...]:
        """What a no means: who has joined before stays."""
        name = self.invitation.manifest.campaign
        if all(m.name != name or m.status == "left" for m in self.client.memberships()):
            return (say("Not joined; nothing was drawn, sent or spent."),)
        stays = message(
            "This device has already joined {name} and stays in it; nothing was changed."
        )
        leave = typed("allomfree-edge", "leave", name, without=REMEMBERED | {"credentials_for"})
        return say(stays, name=name), say("Stop with: {command}", command=leave)

    def remember(self) -> None:
        """Keep the credentials that were typed for `run`, for this broker alone (P2)."""
        given, broker = self.settings.to_remember(), self.invitation.broker
        if given is None:
            return
        if not self.client.connector.will_know(broker):  # they are for another one
            kept = self.client.remembered.of(broker) or Remembered()
            given = replace(kept, ca_file=given.ca_file or kept.ca_file)
        self.client.remembered.remember(broker, given)

    def joined(self, membership: Membership) -> None:
        """What was settled, and what to do next."""
        from edge_client.show import statement, text  # noqa: PLC0415

        with speaking(ENGLISH if self.as_json else self.settings.speech):
            print_facts(statement.joined_facts(membership), self.as_json, text.joined_text)
            if not self.as_json:
                click.echo(self._next())

    def _next(self) -> str:
        if last_heartbeat(self.settings.state_dir):
            return say("The running agent takes it up.")
        command = typed("allomfree-edge", "run", without=REMEMBERED | {"credentials_for"})
        return say("Next: {command}", command=command)

    def _facts(self) -> InvitationFacts:
        from edge_client.show import statement  # noqa: PLC0415
        from edge_client.sources.checking import unreadable  # noqa: PLC0415

        connector, broker = self.client.connector, self.invitation.broker
        return statement.invitation_facts(
            self.invitation,
            connector.username(broker),
            credentials=connector.treatment(broker),
            operator_name=self.settings.policy.operator_name(self.invitation.operator),
            sources=unreadable(self.invitation.manifest.attributes, self.settings.sources),
        )
