"""What several commands share: the client that settings describe, and a question to the owner."""

from __future__ import annotations

import sys

import click

from edge_client.client import EdgeClient
from edge_client.settings import Settings
from edge_client.timing import Timing


def open_client(
    settings: Settings, *, exclusive: bool = False, timing: Timing | None = None
) -> EdgeClient:
    """The client for these settings; `exclusive` where something may be drawn or wiped."""
    return EdgeClient(
        settings.state_dir,
        policy=settings.policy,
        credentials=settings.credentials(),
        allow_plaintext=settings.allow_plaintext,
        keepalive=settings.keepalive,
        exclusive=exclusive,
        timing=timing,
    )


def agree_or_exit(question: str, otherwise: str) -> None:
    """Go on if the owner says yes; no answer, as from cron, is a no."""
    try:
        if click.confirm(question, default=False, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    click.echo(f"{otherwise} (--yes agrees without being asked)", err=True)
    sys.exit(3)
