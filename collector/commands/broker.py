"""The broker: its configuration, and which devices may connect."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import click

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
from collector.commands import broker_text
from collector.commands.broker_text import ConfiguredFacts, EnrolledFacts, RevokedFacts
from collector.commands.options import FILE, command
from collector.data_dir import make_private, open_store
from collector.settings import Settings
from protocol_spec.programs.commands import AS_JSON, show
from protocol_spec.programs.errors import SettingsError
from protocol_spec.topics import DEFAULT_NAMESPACE, is_device


@command
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name or address by which devices reach the broker; may be repeated.",
)
@click.option(
    "--port", type=click.IntRange(1, 65_535), help=f"Port of the TLS listener.  [default: {PORT}]"
)
@click.option("--bind", metavar="ADDRESS", help="Address to listen on.  [default: all]")
@click.option(
    "--auth", type=click.Choice(AUTHS), help="How devices authenticate.  [default: password]"
)
@click.option("--server-cert", type=FILE, help="Server certificate made elsewhere, with its chain.")
@click.option("--server-key", type=FILE, help="Key of the server certificate.")
@click.option("--server-ca", type=FILE, help="Authority devices must trust, if not the system's.")
@click.option("--own-cert", is_flag=True, help="Go back to a certificate made here.")
@click.option("--root", type=FILE, help="The directory as a broker in a container sees it.")
@click.option("--run-as", metavar="USER", help="User that a broker started by root becomes.")
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
    """Write a broker's configuration, with access control.

    That is its access list, its passwords or client certificates, and its own certificate.
    Run again, it writes them again and renews certificates that need it. Options that are not
    given keep their values, and enrolled devices stay enrolled.

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
    facts: ConfiguredFacts = {
        "kind": kind,
        "directory": str(directory),
        "broker": str(plan.url),
        "auth": plan.auth,
        "namespace": plan.namespace,
        "enrolled": len(configured.enrolled),
        "authority_changed": before is not None and trusted != configured.authority_digest,
        "reloaded": configured.reload(),
    }
    show(facts, as_json, broker_text.configured_text)


@command
@click.argument("names", nargs=-1)
@click.option("--count", type=int, default=0, help="Also enrol this many under random names.")
@click.option("--from", "file", type=click.File(), help="File of names, one a line; - is stdin.")
@AS_JSON
def enrol(
    settings: Settings, names: tuple[str, ...], count: int, file: TextIO | None, as_json: bool
) -> None:
    """Create credentials for devices at the configured broker.

    Broker and collector see a device's name: a random one says nothing about its owner.

    \b
    allomfree-collector enrol --count 3
    allomfree-collector enrol kitchen garden
    """
    path = settings.broker_dir.absolute()
    BrokerDirectory.load(path)  # an error where there is none
    wanted = [*names, *_lines(file), *(secrets.token_hex(8) for _ in range(count))]
    _check_names(wanted)
    with BrokerDirectory.changing(path):
        configured = BrokerDirectory.load(path)
        directories = configured.enrol(wanted)
    facts: EnrolledFacts = {
        "broker": str(configured.plan.url),
        "namespace": configured.plan.namespace,
        "enrolled": [
            {"device": name, "credentials": str(place)} for name, place in zip(wanted, directories)
        ],
        "reloaded": configured.reload(),
        "kind": configured.plan.kind,
    }
    show(facts, as_json, broker_text.enrolled_text)


def _check_names(names: list[str]) -> None:
    if not names:
        raise SettingsError("no device is named; no device was enrolled. Give names, or --count 1")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SettingsError(f"{name} is named twice; no device was enrolled")
        seen.add(name)


@command
@click.argument("device")
@click.option("--undo", is_flag=True, help="Let the device connect and report again.")
@AS_JSON
def revoke(settings: Settings, device: str, undo: bool, as_json: bool) -> None:
    """Refuse a device's reports and revoke its credential.

    The credential is the broker's, so only one that was enrolled here can be revoked.

    \b
    allomfree-collector revoke kitchen-7
    """
    if not is_device(device):
        raise SettingsError(
            f"invalid device name {device!r}: use 1 to 32 of a-z, 0-9 and -. Nothing was changed"
        )
    with closing(open_store(settings.data_dir)) as store:
        if undo:
            store.reinstate(device)
        else:
            store.revoke(device, int(time.time()))
    path = settings.broker_dir.absolute()
    configured, enrolled = None, False
    if BrokerDirectory.exists(path):
        with BrokerDirectory.changing(path):
            configured = BrokerDirectory.load(path)
            enrolled = configured.revoke(device, undo=undo)
    facts: RevokedFacts = {
        "device": device,
        "revoked": not undo,
        "enrolled": enrolled,
        "kind": configured.plan.kind if configured else None,
        "reloaded": bool(configured and enrolled and configured.reload()),
    }
    show(facts, as_json, broker_text.revoked_text)


def _plan(
    kind: Kind,
    settings: Settings,
    directory: Path,
    before: BrokerDirectory | None,
    given: Mapping[str, Any],
) -> BrokerPlan:
    """The plan made before, or a new one, with the options given now."""
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


def _lines(file: Iterable[str] | None) -> list[str]:
    return [line.strip() for line in file or () if line.strip()]
