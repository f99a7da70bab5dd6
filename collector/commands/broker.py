"""Commands about the broker: its configuration, and who is let in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from collector.brokers.access import PROBE
from collector.brokers.directory import BrokerDirectory
from collector.brokers.plan import (
    AUTHS,
    KINDS,
    PORT,
    Auth,
    BrokerPlan,
    Kind,
    Pair,
    ServerCertificate,
)
from collector.commands import broker_text as broker_pages
from collector.commands.group import command
from collector.data_dir import make_private, open_store
from collector.settings import Settings
from protocol_spec.programs.commands import AS_JSON, show
from protocol_spec.programs.errors import SettingsError
from protocol_spec.topics import DEFAULT_NAMESPACE, is_device

A_PATH = click.Path(path_type=Path)


@command
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "--host", "hosts", multiple=True, help="Name or address devices use; may be repeated."
)
@click.option("--port", type=click.IntRange(1, 65_535), help=f"Port to serve TLS on [{PORT}].")
@click.option("--bind", help="Address to listen on; every one if not given.")
@click.option("--auth", type=click.Choice(AUTHS), help="How devices prove who they are [password].")
@click.option("--server-cert", type=A_PATH, help="A certificate made elsewhere, with its chain.")
@click.option("--server-key", type=A_PATH, help="Its key.")
@click.option("--server-ca", type=A_PATH, help="What devices must trust, if not the system does.")
@click.option("--own-cert", is_flag=True, help="Go back to a certificate made here.")
@click.option("--root", type=A_PATH, help="The directory as the broker sees it, in a container.")
@click.option("--run-as", help="User that a broker started by root becomes.")
@AS_JSON
def broker_config(
    settings: Settings,
    kind: Kind,
    hosts: tuple[str, ...],
    port: int | None,
    bind: str | None,
    auth: Auth | None,
    server_cert: Path | None,
    server_key: Path | None,
    server_ca: Path | None,
    own_cert: bool,
    root: Path | None,
    run_as: str | None,
    as_json: bool,
) -> None:
    """Write a broker's configuration, access list, passwords and certificates.

    Run again, it writes the same anew, with certificates renewed where they need it; what is not
    given stays as it was, and everybody enrolled stays so.

    \b
    allomfree-collector broker-config mosquitto --host broker.example
    allomfree-collector broker-config nats --host pi.local --host 192.168.1.10
    """
    directory = settings.broker_dir.absolute()
    server = _server(server_cert, server_key, server_ca)
    given = {
        "hosts": hosts or None,
        "root": root,
        "port": port,
        "bind": bind,
        "auth": auth,
        "run_as": run_as,
        "own_certificate": False if server else own_cert or None,
    }
    if not BrokerDirectory.exists(directory):
        _plan(kind, settings, directory, None, given)  # refused before anything is written
    make_private(settings.data_dir)
    with BrokerDirectory.changing(directory):
        before = BrokerDirectory.load(directory) if BrokerDirectory.exists(directory) else None
        plan = _plan(kind, settings, directory, before, given)
        trusted = before.authority_digest if before else ""
        configured = BrokerDirectory.configure(directory, plan, server)
    facts = {
        "kind": kind,
        "directory": str(directory),
        "broker": str(plan.url),
        "auth": plan.auth,
        "namespace": plan.namespace,
        "enrolled": _enrolled(configured),
        "authority_changed": before is not None and trusted != configured.authority_digest,
        "reloaded": configured.reload(),
    }
    show(facts, as_json, broker_pages.configured_text)


@command
@click.argument("names", nargs=-1)
@click.option("--count", type=int, default=0, help="So many devices with names made up.")
@click.option("--from", "file", type=click.File(), help="Names, one a line; - is standard input.")
@AS_JSON
def enrol(settings: Settings, names: tuple[str, ...], count: int, file: Any, as_json: bool) -> None:
    """Give devices credentials for the broker that broker-config wrote.

    A name is seen by broker and collector: one that is made up says nothing about its owner.

    \b
    allomfree-collector enrol --count 3
    allomfree-collector enrol kitchen garden
    """
    path = settings.broker_dir.absolute()
    BrokerDirectory.load(path)  # says so where there is none
    wanted = [*names, *_lines(file), *(secrets.token_hex(8) for _ in range(count))]
    if not wanted:
        raise SettingsError("no device is named; nobody was enrolled. Give names, or --count 1")
    twice = {name for name in wanted if wanted.count(name) > 1} if len(wanted) < 1000 else set()
    if twice or len(set(wanted)) < len(wanted):
        raise SettingsError(
            f"{', '.join(sorted(twice)) or 'a name'} is named twice; nobody was enrolled"
        )
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        directories = configured.enrol(wanted)
    facts = {
        "broker": str(configured.plan.url),
        "namespace": configured.plan.namespace,
        "enrolled": [
            {"device": name, "credentials": str(place)} for name, place in zip(wanted, directories)
        ],
        "reloaded": configured.reload(),
        "kind": configured.plan.kind,
    }
    show(facts, as_json, broker_pages.enrolled_text)


@command
@click.argument("device")
@click.option("--undo", is_flag=True, help="Let it in and take its reports again.")
@AS_JSON
def revoke(settings: Settings, device: str, undo: bool, as_json: bool) -> None:
    """Take no more reports from a device, and its credential back if it was enrolled here.

    \b
    allomfree-collector revoke kitchen-7
    """
    if not is_device(device):
        raise SettingsError(f"{device!r} is no device name: it is 1 to 32 of a-z, 0-9 and -")
    store = open_store(settings.data_dir)
    if undo:
        store.reinstate(device)
    else:
        store.revoke(device, int(time.time()))
    store.close()
    path = settings.broker_dir.absolute()
    configured, enrolled = None, False
    if BrokerDirectory.exists(path):
        with BrokerDirectory.changing(path):
            configured = BrokerDirectory.load(path)
            enrolled = configured.revoke(device, undo=undo)
    facts = {
        "device": device,
        "revoked": not undo,
        "enrolled": enrolled,
        "kind": configured.plan.kind if configured else None,
        "reloaded": bool(configured and enrolled and configured.reload()),
    }
    show(facts, as_json, broker_pages.revoked_text)


def _plan(
    kind: Kind,
    settings: Settings,
    directory: Path,
    before: BrokerDirectory | None,
    given: Mapping[str, Any],
) -> BrokerPlan:
    """What was decided before, or the beginning of a plan, with what is given now."""
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen["home_assistant"] = settings.home_assistant
    if before is not None:
        named = settings.namespace != DEFAULT_NAMESPACE
        namespace = settings.namespace if named else before.plan.namespace
        return replace(before.plan, kind=kind, namespace=namespace, **chosen)
    if "hosts" not in chosen:
        raise SettingsError(
            "--host is not given; nothing was written. It is the name or address by which devices "
            "reach the broker, and its certificate will be for it"
        )
    return BrokerPlan(kind, settings.namespace, **{"root": directory, **chosen})


def _server(
    certificate: Path | None, key: Path | None, authority: Path | None
) -> ServerCertificate | None:
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None:
        raise SettingsError("--server-cert and --server-key belong together; nothing was written")
    return ServerCertificate(Pair(certificate, key), authority)


def _enrolled(configured: BrokerDirectory) -> int:
    users = configured.users.values()
    return sum(is_device(u.name) and u.name != PROBE and not u.revoked for u in users)


def _lines(file: Iterable[str] | None) -> list[str]:
    return [line.strip() for line in file or () if line.strip()]
