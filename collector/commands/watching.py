"""Facts shown again whenever they change, until somebody has seen enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import click

from collector.commands.options import show
from protocol_spec.programs.output import clear_screen

EVERY_SECONDS: Final = 1.0

Facts = TypeVar("Facts")


def watched(
    facts: Callable[[], Facts],
    as_json: bool,
    text: Callable[[Facts], str],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """On a terminal each time in place of the last; elsewhere, and as JSON, one after the other.

    Ctrl-C ends it, and is no failure.
    """
    try:
        told = facts()
        _say(told, as_json, text)
        while True:
            wait(EVERY_SECONDS)
            now = facts()
            if now != told:
                _say(now, as_json, text)
            told = now
    except KeyboardInterrupt:
        return


def _say(facts: Facts, as_json: bool, text: Callable[[Facts], str]) -> None:
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if not as_json:
        clear_screen()
        click.echo(f"{moment}; Ctrl-C ends")
    show(facts, as_json, text)
    if not as_json:
        click.echo()
