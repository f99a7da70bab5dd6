"""Collecting: `run` the service until it is stopped, or `seal` by hand."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import click

from collector.brokers.choose import (
    ConfigurationWatch,
    choose_broker,
    grant_campaigns,
    grant_discovery,
)
from collector.brokers.credentials import server_expires
from collector.brokers.directory import BrokerDirectory
from collector.commands.broker import reloaded_text
from collector.commands.options import CAMPAIGN, command, show
from collector.data_dir import device_key, existing_store, only_service, open_store
from collector.health import Heartbeat, Status
from collector.ingest.batch import relax_garbage_collector
from collector.opening import remember_address
from collector.records import Campaign
from collector.rounds import sealing
from collector.rounds.results import summary
from collector.settings import Settings
from collector.store import Store
from collector.web.process import page_process
from protocol_spec import Result
from protocol_spec.programs.cli import AS_JSON
from protocol_spec.programs.output import as_json, shown
from protocol_spec.programs.system import notify_systemd

log = logging.getLogger("allomfree.collector")


class Supervised(Protocol):
    """A child process of the service: the embedded broker, the page."""

    @property
    def trouble(self) -> str:
        """What is wrong with it, if that affects counting."""

    def supervise(self) -> None:
        """Restart it if it has ended."""


@command
@click.option("--quiet", is_flag=True, help="Do not print results on standard output.")
def run(settings: Settings, quiet: bool) -> None:
    """Collect for every open campaign until stopped.

    Each sealed result is printed as a line of JSON. Without --broker the embedded broker is
    started, for this machine only. Several workers on one --store share the work.

    \b
    allomfree-collector run
    allomfree-collector run --broker mqtts://broker.example
    """
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda given, _frame: received.append(given))
    with ExitStack() as stack:
        stack.enter_context(only_service(settings.data_dir))
        running = _Running(settings, quiet, stack)
        while not received:
            running.collect(lambda: bool(received))
        notify_systemd("STOPPING=1")


class _Running:
    """What persists while the service runs, even if its broker's configuration changes."""

    def __init__(self, settings: Settings, quiet: bool, stack: ExitStack) -> None:
        self._settings = settings
        self._quiet = quiet
        self._stack = stack
        self._heartbeat = Heartbeat(settings.data_dir)

    @cached_property
    def _store(self) -> Store:
        opened = open_store(self._settings.data_dir, self._settings.store)
        return self._stack.enter_context(closing(opened))

    @cached_property
    def _page(self) -> tuple[list[Supervised], str]:
        page, note = page_process(self._settings)
        return [] if page is None else [self._stack.enter_context(page)], note

    def _emit(self, campaign: Campaign, result: Result) -> None:
        if not self._quiet:
            click.echo(as_json(summary(campaign, result)))

    def collect(self, stopping: Callable[[], bool]) -> None:
        """Run until `stopping` returns true, or another broker configuration is to be used."""
        # Imported here because it loads the MQTT client, which other commands do without.
        from collector.service import service_for  # noqa: PLC0415

        relax_garbage_collector()
        _reload(grant_discovery(self._settings))
        remember_address(self._settings)
        watch = ConfigurationWatch(self._settings)
        known, embedded = choose_broker(self._settings)
        with ExitStack() as stack:
            children: list[Supervised] = []
            if embedded is not None:
                children.append(stack.enter_context(embedded))
            watch.started(embedded)
            _reload(grant_campaigns(known, [c.name for c in self._store.campaigns()]))
            key = device_key(known, self._store)
            service = service_for(known, self._store, key, self._emit, embedded)
            page, note = self._page  # only now: a service that cannot collect shows no page
            children += page
            status = service.status
            status.page, status.broker_config = note, watch.in_use
            status.broker_dir = str(known.broker_dir.absolute()) if watch.in_use else ""
            broker = known.required_broker()
            status.plaintext = "" if broker.tls or broker.is_loopback else str(broker)
            notify_systemd("READY=1")
            service.run(
                lambda: stopping() or watch.changed(),
                lambda: _each_turn(status, self._heartbeat, children),
            )


def _reload(changed: BrokerDirectory | None) -> None:
    """NATS reads its files when it is started, a moment later."""
    if changed is not None and changed.plan.kind != "nats" and not changed.reload():
        log.warning("%s", reloaded_text(False, changed.plan.kind, {}))


def _each_turn(status: Status, heartbeat: Heartbeat, children: list[Supervised]) -> None:
    for child in children:
        child.supervise()
    if heartbeat.due and status.broker_dir:
        status.certificate = server_expires(Path(status.broker_dir) / "tls") or 0.0
    trouble = status.trouble or next((child.trouble for child in children if child.trouble), "")
    heartbeat.beat(replace(status, trouble=trouble))
    state = trouble or f"{status.accepted} reports accepted"
    notify_systemd(f"WATCHDOG=1\nSTATUS={shown(state, 120)}")


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
    with closing(existing_store(settings.data_dir, settings.store)) as store:
        found = store.campaign(campaign)
        now = time.time() + (found.manifest.rounds.grace if early else 0)
        due = list(sealing.due(store, found, now))
        for number in due:
            sealing.seal(store, found, number, int(time.time()))
    done = f"sealed {', '.join(map(str, due))}" if due else "nothing was due"
    facts = {"campaign": found.name, "sealed": due}
    show(facts, as_json, lambda _: f"{found.name}: {done}")
