"""Who may connect to the broker: devices that report, and readers that never do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from difflib import get_close_matches
from typing import TextIO

import click

from collector.brokers import cluster
from collector.brokers.access import READER
from collector.brokers.directory import BrokerDirectory
from collector.brokers.readers import announce_below, enrol_readers, readers
from collector.commands import broker_text
from collector.commands.broker_text import EnrolledFacts, RevokedFacts
from collector.commands.handing_over import hand_over
from collector.commands.options import command, show
from collector.data_dir import existing_store, open_store
from collector.settings import Settings
from protocol_spec.programs.commands import AS_JSON
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.output import quoted
from protocol_spec.topics import is_device


@command
@click.argument("names", nargs=-1)
@click.option("--count", type=int, default=0, help="Also enrol this many under random names.")
@click.option("--from", "file", type=click.File(), help="File of names, one a line; - is stdin.")
@click.option(
    "--reader",
    "wanted_readers",
    multiple=True,
    metavar="NAME",
    help="Enrol a dashboard: it reads results and can never report; may be repeated.",
)
@AS_JSON
def enrol(
    settings: Settings,
    names: tuple[str, ...],
    count: int,
    file: TextIO | None,
    wanted_readers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create credentials for devices, or for readers, at the configured broker.

    Broker and collector see a device's name: a random one says nothing about its owner. With
    --home-assistant, campaigns are announced to Home Assistant, and readers can read that.

    \b
    allomfree-collector enrol --count 3
    allomfree-collector enrol kitchen garden
    allomfree-collector enrol --reader home --home-assistant homeassistant
    """
    path = settings.broker_dir.absolute()
    BrokerDirectory.load(path)  # an error where there is none
    wanted = [*names, *_lines(file), *(secrets.token_hex(8) for _ in range(count))]
    _check_names([*wanted, *(f"{READER}{name}" for name in wanted_readers)])
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        if settings.home_assistant is not None:
            announce_below(configured, settings.home_assistant or None)
        directories = configured.enrol(wanted) if wanted else []
        reading = enrol_readers(configured, wanted_readers) if wanted_readers else {}
    facts: EnrolledFacts = {
        "broker": str(configured.plan.url),
        "namespace": configured.plan.namespace,
        "enrolled": [
            {"device": name, "credentials": str(place)} for name, place in zip(wanted, directories)
        ],
        "readers": [{"reader": name, "credentials": str(reading[name])} for name in reading],
        "home_assistant": configured.plan.home_assistant,
        "reloaded": hand_over(settings, configured),
        "kind": configured.plan.kind,
        "nodes": cluster.places(configured.path, configured.plan),
    }
    show(facts, as_json, broker_text.enrolled_text)


def _lines(file: Iterable[str] | None) -> list[str]:
    return [line.strip() for line in file or () if line.strip()]


def _check_names(names: list[str]) -> None:
    if not names:
        raise SettingsError("no device is named; nothing was enrolled. Give names, or --count 1")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SettingsError(f"{name} is named twice; nothing was enrolled")
        seen.add(name)


@command
@click.argument("device")
@click.option("--undo", is_flag=True, help="Let the device connect and report again.")
@AS_JSON
def revoke(settings: Settings, device: str, undo: bool, as_json: bool) -> None:
    """Refuse a device's reports and revoke its credential; or a reader's.

    The credential is the broker's, so only one that was enrolled here can be revoked.

    \b
    allomfree-collector revoke kitchen-7
    allomfree-collector revoke Reader-home
    """
    reader = device.startswith(READER)
    if not is_device(device.removeprefix(READER)):
        raise SettingsError(
            f"invalid device name {quoted(device)}: use 1 to 32 of a-z, 0-9 and -. Nothing was "
            "changed"
        )
    changed = not reader and _refuse_reports(settings, device, undo=undo)
    configured, enrolled = _take_credential(settings, device, undo=undo)
    if reader and not enrolled:
        raise SettingsError(_unknown_reader(device, configured))
    facts: RevokedFacts = {
        "device": device,
        "revoked": not undo,
        "changed": changed or enrolled,
        "enrolled": enrolled,
        "similar": [] if enrolled or configured is None else _similar(device, configured),
        "kind": configured.plan.kind if configured else None,
        "reloaded": bool(configured and enrolled and hand_over(settings, configured)),
        "nodes": cluster.places(configured.path, configured.plan) if configured else {},
    }
    show(facts, as_json, broker_text.revoked_text)


def _refuse_reports(settings: Settings, device: str, *, undo: bool) -> bool:
    """Whether that was not so before.

    Where a broker was configured, the directory is a collector's, though it may not have run yet.
    """
    ours = settings.store is None and BrokerDirectory.exists(settings.data_dir / "broker")
    opened = (open_store if ours else existing_store)(settings.data_dir, settings.store)
    with closing(opened) as store:
        before = device in store.revoked()
        if undo:
            store.reinstate(device)
        else:
            store.revoke(device, int(time.time()))
    return before == undo


def _take_credential(
    settings: Settings, name: str, *, undo: bool
) -> tuple[BrokerDirectory | None, bool]:
    """The broker configured here, if there is one, and whether the name is enrolled there."""
    path = settings.broker_dir.absolute()
    if not BrokerDirectory.exists(path):
        return None, False
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        return configured, configured.revoke(name, undo=undo)


def _similar(device: str, configured: BrokerDirectory) -> list[str]:
    """Whom somebody may have meant: a reader, named as `enrol` was told, or a device."""
    reader = [name for name in readers(configured) if name == f"{READER}{device}"]
    return [*reader, *get_close_matches(device, configured.enrolled, 3)]


def _unknown_reader(name: str, configured: BrokerDirectory | None) -> str:
    known: Sequence[str] = [] if configured is None else readers(configured)
    there_are = f"there are {', '.join(known)}" if known else "there is none"
    return f"no reader {name} is enrolled here: {there_are}. Nothing was changed"
