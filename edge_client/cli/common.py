"""What several commands share: the decorator, the device that settings describe, a question."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from edge_client.agent import DeviceState
from edge_client.errors import PolicyRefusal
from edge_client.language import say
from edge_client.policy import THE_FILE
from edge_client.settings import SETTINGS, USERS_FILE, Settings, resolve
from protocol_spec.programs.cli import command_of
from protocol_spec.programs.output import shown

if TYPE_CHECKING:
    from edge_client.client import EdgeClient
    from edge_client.records import Timing
    from protocol_spec.programs.settings import Credentials

command: Final = command_of(SETTINGS, resolve, "edge")

CAMPAIGN: Final = click.argument("campaign", required=False)


def open_client(
    settings: Settings,
    *,
    exclusive: bool = False,
    timing: Timing | None = None,
    known: Credentials | None = None,
    known_by: tuple[str, ...] = (),
) -> EdgeClient:
    """The client for these settings; `exclusive` where something may be drawn or wiped.

    An invitation's credential, and the broker it is for, take the place of those in the settings.
    """
    from edge_client.client import EdgeClient  # noqa: PLC0415 - loads MQTT, which `show` needs not

    return EdgeClient(
        settings.state_dir,
        policy=settings.policy,
        credentials=known or settings.credentials(),
        credentials_for=known_by or settings.credentials_for,
        allow_plaintext=settings.allow_plaintext,
        keepalive=settings.keepalive,
        exclusive=exclusive,
        timing=timing,
    )


def open_device(settings: Settings) -> DeviceState:
    """The same for inspection only: no broker is asked, and nothing can be drawn."""
    return DeviceState(settings.state_dir, policy=settings.policy)


@contextmanager
def naming_the_file(settings: Settings) -> Iterator[None]:
    """A refusal of the policy names the file in which to change it."""
    try:
        yield
    except PolicyRefusal as refused:
        file = shown(settings.config or USERS_FILE)
        raise PolicyRefusal(str(refused).replace(THE_FILE, file)) from None


def agree_or_exit(question: str, otherwise: str, hint: str = "") -> None:
    """Ask until it is yes or no, in English or the owner's language; return only after a yes.

    Enter alone is a no, and so is no answer, as from cron. A hint is another line.
    """
    yes = {"y", "yes", *say("y yes").split()}
    no = {"", "n", "no", *say("n no").split()}
    prompt = f"{question} {say('[y/N]')}"
    try:
        while True:
            answer = click.prompt(prompt, default="", show_default=False, err=True).strip().lower()
            if answer in yes:
                return
            if answer in no:
                break
            click.echo(say("Please answer yes or no."), err=True)
    except click.Abort:
        click.echo(err=True)
    declined = say("{otherwise} (--yes agrees without being asked)", otherwise=otherwise)
    click.echo("\n".join(filter(None, (declined, hint))), err=True)
    sys.exit(3)
