"""Collecting: `run` the service until it is stopped, or `seal` by hand."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Protocol

import click

from collector.brokers.choose import choose_broker
from collector.commands import text
from collector.commands.options import CAMPAIGN, command
from collector.data_dir import client_id, only_service, open_store
from collector.device_key import DeviceKey
from collector.health import Heartbeat, Status
from collector.records import Campaign
from collector.rounds import sealing
from collector.rounds.result_json import summary
from collector.settings import Settings
from collector.web.child import page_process
from protocol_spec import Result
from protocol_spec.programs.commands import AS_JSON, show
from protocol_spec.programs.systemd import notify


class Supervised(Protocol):
    """A child process of the service: the embedded broker, the page."""

    def supervise(self) -> None:
        """Restart it if it has ended."""


@command
@click.option("--quiet", is_flag=True, help="Do not print results on standard output.")
def run(settings: Settings, quiet: bool) -> None:
    """Collect for every open campaign until stopped.

    Each sealed result is printed as a line of JSON. Without --broker the embedded broker is
    started, for this machine only.

    \b
    allomfree-collector run
    allomfree-collector run --broker mqtts://broker.example
    """
    # Here and not above: it brings the MQTT client in, which other commands do without.
    from collector.mqtt.link import PahoConnector  # noqa: PLC0415
    from collector.service import Service  # noqa: PLC0415

    stopping = _stop_signals()
    with ExitStack() as stack:
        stack.enter_context(only_service(settings.data_dir))
        settings, embedded = choose_broker(settings)
        children: list[Supervised] = []
        if embedded is not None:
            children.append(stack.enter_context(embedded))
        store = stack.enter_context(closing(open_store(settings.data_dir)))
        service = Service(
            store,
            DeviceKey(settings.data_dir / "device.key", make=store.received() == 0),
            PahoConnector(
                settings.required_broker(),
                settings.credentials(),
                client_id=client_id(settings),
                keepalive=settings.keepalive,
            ),
            namespace=settings.namespace,
            home_assistant=settings.home_assistant,
            emit=_print_nothing if quiet else _print_result,
        )
        page = page_process(settings)
        if page is not None:
            children.append(stack.enter_context(page))
        heartbeat = Heartbeat(settings.data_dir)
        notify("READY=1")
        service.run(stopping, lambda: _each_turn(service.status, heartbeat, children))
        notify("STOPPING=1")


def _stop_signals() -> Callable[[], bool]:
    """Whether somebody asked us to stop, from now on."""
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda given, _frame: received.append(given))
    return lambda: bool(received)


def _each_turn(status: Status, heartbeat: Heartbeat, children: list[Supervised]) -> None:
    for child in children:
        child.supervise()
    heartbeat.beat(status)
    state = status.trouble or f"{status.accepted} reports accepted"
    notify(f"WATCHDOG=1\nSTATUS={state[:120]}")


def _print_result(campaign: Campaign, result: Result) -> None:
    click.echo(json.dumps(summary(campaign, result), ensure_ascii=False))


def _print_nothing(_campaign: Campaign, _result: Result) -> None:
    return


@command
@CAMPAIGN
@click.option("--early", is_flag=True, help="Also rounds that have ended but are in their grace.")
@AS_JSON
def seal(settings: Settings, campaign: str | None, early: bool, as_json: bool) -> None:
    """Seal rounds whose deadline has passed.

    The running service does so by itself; this does not wait for it.

    \b
    allomfree-collector seal home-heat
    """
    with closing(open_store(settings.data_dir)) as store:
        found = store.campaign(campaign)
        now = time.time() + (found.manifest.rounds.grace if early else 0)
        due = list(sealing.due(store, found, now))
        for number in due:
            sealing.seal(store, found, number, int(time.time()))
    facts: text.SealedFacts = {"campaign": found.name, "sealed": due}
    show(facts, as_json, text.sealed_text)
