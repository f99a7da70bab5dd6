"""`run` and `report`: draw and deliver, as a daemon or once."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from edge_client.agent import Wait
from edge_client.cli.common import command, open_client
from edge_client.clock import first_doubt
from edge_client.errors import SettingsError
from edge_client.records import Timing
from edge_client.settings import Settings
from edge_client.sources import Source, build, build_all, reader
from edge_client.status import ReportState
from protocol_spec.programs.cli import AS_JSON, fail, print_facts
from protocol_spec.programs.output import nearest, shown
from protocol_spec.programs.system import notify_systemd

if TYPE_CHECKING:
    from edge_client.records import Membership

log = logging.getLogger("allomfree.edge")


@command
def run(settings: Settings) -> None:
    """Report every round until stopped: for systemd, or in the foreground.

    \b
    allomfree-edge run
    """
    serve(settings)


def serve(settings: Settings, timing: Timing | None = None) -> None:
    """What `run` does, until a signal ends it."""
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stopping.append(received))
    with open_client(settings, exclusive=True, timing=timing) as client:
        runner = client.runner(reader(build_all(settings.sources, settings.config)))
        members = [m for m in client.memberships() if m.status == "joined"]
        names = ", ".join(member.name for member in members)
        started = f"running for {names}: reports leave at random moments of their rounds"
        idle = "running; no campaign is joined, see: allomfree-edge join"
        log.info(started if names else idle)
        if why := first_doubt([member.manifest for member in members], client.clock):
            log.warning("clock: %s", why)
        notify_systemd("READY=1")
        runner.run(
            lambda: bool(stopping),
            lambda text: notify_systemd(f"WATCHDOG=1\nSTATUS={shown(text, 120)}"),
        )
        notify_systemd("STOPPING=1")


@command
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="ATTRIBUTE=VALUE",
    help="A value instead of the configured source; may be repeated.",
)
@click.option(
    "--timeout", default=30.0, show_default=True, help="Seconds to wait for broker and receipt."
)
@click.option(
    "--all",
    "visit",
    is_flag=True,
    help="Look once for every receipt outstanding, then leave; exit 1 while one is missing.",
)
@AS_JSON
def report(
    settings: Settings, values: tuple[str, ...], timeout: float, visit: bool, as_json: bool
) -> None:
    """Report this round once and exit: for cron and battery-powered devices.

    \b
    allomfree-edge report
    allomfree-edge report --all
    allomfree-edge report --value fuel=wood
    """
    given = _given(values)
    sources = {**build_all(settings.sources, settings.config), **given}
    with open_client(settings, exclusive=True) as client:
        _check_questions(given, sources, client.memberships())
        done = client.report_from(reader(sources), timeout=timeout, visit=visit)
        facts = [{"campaign": d.campaign, "round": d.round, "state": d.text} for d in done]
        lines = [
            f"{d.campaign}: {'' if d.round is None else f'round {d.round}: '}{d.text}" for d in done
        ]
        if done or as_json:
            print_facts({"reports": facts}, as_json, lambda _: "\n".join(lines))
    if not done:
        fail("no campaign is joined; nothing was drawn or sent. See: allomfree-edge join", 1)
    for one in done:  # what the owner should look at is an error; what only takes time is not
        if one.state is ReportState.QUEUED:
            what = f"{one.campaign}: stored but not sent, {one.reason}"
            fail(f"{what}. Try again with: allomfree-edge report", 1)
        if one.reason == Wait.CLOCK_EARLY:
            fail(f"{one.campaign}: {one.reason}; nothing was drawn or sent. Set the clock", 1)
    sent = sum(one.state is ReportState.SENT for one in done)
    if visit and sent:
        counted = sum(one.state is ReportState.COUNTED for one in done)
        what = f"{counted} confirmed, {sent} outstanding: sent, and kept until there is a receipt"
        fail(f"{what}. Try again with: allomfree-edge report --all", 1)


def _given(values: tuple[str, ...]) -> dict[str, Source]:
    sources = {}
    for given in values:
        name, equals, value = given.partition("=")
        if not equals:
            raise SettingsError(
                "--value: write ATTRIBUTE=VALUE, as in fuel=wood; nothing was drawn or sent"
            )
        sources[name] = build(name, {"value": value})
    return sources


def _check_questions(
    names: Iterable[str], sources: Iterable[str], memberships: list[Membership]
) -> None:
    """Refuse a name that no campaign asks for, and one of two that are asked for together: the
    question would get the "other" answer, for life.

    The message depends on names only, never on a value.
    """
    every = [[p.name for p in a.parts] for m in memberships for a in m.manifest.attributes]
    asked = sorted({name for parts in every for name in parts})
    for name in names:
        if asked and name not in asked:
            near = nearest(name, asked) or f"; those are: {shown(', '.join(asked), 400)}."
            raise SettingsError(
                f"--value: {shown(name, 80)} is not a question of a joined campaign{near} "
                "Nothing was drawn or sent"
            )
    for parts in every:
        lacking = [name for name in parts if name not in sources]
        if lacking and len(lacking) < len(parts) and not {*parts}.isdisjoint(names):
            raise SettingsError(
                f"--value: {' and '.join(parts)} are asked for together, and there is no source "
                f"for {lacking[0]}. Nothing was drawn or sent. Add: --value {lacking[0]}=..."
            )
