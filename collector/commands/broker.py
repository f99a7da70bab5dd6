"""The broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from collector.brokers import cluster
from collector.brokers.directory import BrokerDirectory
from collector.brokers.plan import (
    AUTHS,
    CLUSTER_PORT,
    KINDS,
    PORT,
    Auth,
    BrokerPlan,
    Kind,
    Pair,
    ServerCertificate,
    address_of,
    this_user,
)
from collector.commands import broker_text
from collector.commands.broker_text import ConfiguredFacts
from collector.commands.handing_over import hand_over, needs_restart
from collector.commands.options import FILE, command, show
from collector.configuration import fingerprint
from collector.data_dir import make_private, read_store
from collector.errors import CollectorError
from collector.settings import Settings
from protocol_spec.programs.commands import AS_JSON
from protocol_spec.programs.errors import SettingsError
from protocol_spec.topics import DEFAULT_NAMESPACE


@command
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("node", nargs=-1, metavar="")
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
@click.option(
    "--bind",
    metavar="ADDRESS",
    help="Address to listen on, or all.  [default: that of --host, or all if it is a name]",
)
@click.option(
    "--auth", type=click.Choice(AUTHS), help="How devices authenticate.  [default: password]"
)
@click.option(
    "--stream-port",
    type=click.IntRange(1, 65_535),
    help="NATS: also let workers pull reports, at this port (usually 4222).",
)
@click.option(
    "--cluster",
    "nodes",
    multiple=True,
    metavar="HOST HOST HOST",
    help="NATS: the machines of a cluster, three or five.",
)
@click.option(
    "--cluster-port",
    type=click.IntRange(1, 65_535),
    help=f"Port that nodes use among themselves.  [default: {CLUSTER_PORT}]",
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
    node: tuple[str, ...],
    hosts: tuple[str, ...],
    port: int | None,
    bind: str | None,
    auth: Auth | None,
    stream_port: int | None,
    nodes: tuple[str, ...],
    cluster_port: int | None,
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
    allomfree-collector broker-config nats --cluster a.example b.example c.example
    """
    _check_further(node, nodes)
    directory = settings.broker_dir.absolute()
    server = _server(server_cert, server_key, server_ca)
    given = {
        "hosts": hosts or None,
        "root": root,
        "port": port,
        "bind": "0.0.0.0" if bind == "all" else bind,  # noqa: S104 - asked for by name
        "auth": auth,
        "stream_port": stream_port,
        "nodes": (*nodes, *node) or None,
        "cluster_port": cluster_port,
        "run_as": run_as,
        "own_certificate": False if server else own_cert or None,
    }
    if not BrokerDirectory.exists(directory):
        _plan(kind, settings, directory, None, given)  # refused before anything is written
    make_private(settings.data_dir)
    known = _known_campaigns(settings)
    with BrokerDirectory.changing(directory):
        before = BrokerDirectory.load(directory) if BrokerDirectory.exists(directory) else None
        plan = _plan(kind, settings, directory, before, given)
        plan = replace(plan, campaigns=known) if known is not None else plan
        trusted, last = before.authority_digest if before else "", fingerprint(directory)
        configured = BrokerDirectory.configure(directory, plan, server)
    restart = before is not None and needs_restart(configured, last)
    facts: ConfiguredFacts = {
        "kind": kind,
        "directory": str(directory),
        "broker": str(plan.url),
        "auth": plan.auth,
        "namespace": plan.namespace,
        "stream": ",".join(map(str, plan.streams(plan.url.host) or ())) or None,
        "listens_on": "every interface" if plan.everywhere else plan.bind,
        "enrolled": len(configured.enrolled),
        "authority_changed": before is not None and trusted != configured.authority_digest,
        "reloaded": not restart and hand_over(settings, configured),
        "restart": restart,
        "run_as": plan.run_as,
        "nodes": cluster.places(configured.path, plan),
    }
    show(facts, as_json, broker_text.configured_text)


def _check_further(further: Sequence[str], nodes: Sequence[str]) -> None:
    """`--cluster A B C` is one option and two more words."""
    if further and not nodes:
        raise click.UsageError(f"Got unexpected extra argument ({' '.join(further)})")


def _plan(
    kind: Kind,
    settings: Settings,
    directory: Path,
    before: BrokerDirectory | None,
    given: Mapping[str, Any],
) -> BrokerPlan:
    """The plan made before, or a new one, with the options given now."""
    known = None if before is None else before.plan
    chosen = {k: v for k, v in cluster.with_nodes(given, known).items() if v is not None}
    if settings.home_assistant is not None:
        chosen["home_assistant"] = settings.home_assistant or None
    if before is not None:
        named = settings.namespace != DEFAULT_NAMESPACE
        namespace = settings.namespace if named else before.plan.namespace
        return replace(before.plan, kind=kind, namespace=namespace, **chosen)
    if "hosts" not in chosen:
        raise SettingsError(
            "--host is not given; nothing was written. It is the name or address by which devices "
            "reach the broker, and its certificate will be for it"
        )
    chosen.setdefault("bind", address_of(chosen["hosts"]))
    if kind == "mosquitto" and "root" not in chosen:
        chosen.setdefault("run_as", this_user())
    return BrokerPlan(kind, settings.namespace, **{"root": directory, **chosen})


def _known_campaigns(settings: Settings) -> tuple[str, ...] | None:
    """The campaigns of this collector; None where it has no data, as on a broker's own machine."""
    if not settings.data_dir.exists():
        return None
    try:
        with closing(read_store(settings.data_dir, settings.store)) as store:
            return tuple(sorted(campaign.name for campaign in store.campaigns())) or None
    except CollectorError:
        return None


def _server(
    certificate: Path | None, key: Path | None, authority: Path | None
) -> ServerCertificate | None:
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None:
        raise SettingsError("--server-cert and --server-key belong together; nothing was written")
    return ServerCertificate(Pair(certificate, key), authority)
