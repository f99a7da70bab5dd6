"""A NATS cluster: one directory for each node, to be carried to its machine.

    nodes/NAME/nats.conf, users.conf    the same for all, but for the server's name and address
    nodes/NAME/tls/server.*             what clients see, the same for all
    nodes/NAME/tls/route.*              what the other nodes see, its own
    nodes/NAME/tls/routes.crt           the authority of nodes, and of nobody else

Nodes let each other in by certificates of an authority that issues nothing else: no device's
certificate, and no password, makes anybody a node. Paths in nats.conf are relative to the node's
directory, in which nats-server is started, unless `--root` says where it will be.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from collector.brokers import nats
from collector.brokers.certificates import authority_in
from collector.brokers.plan import STREAM_PORT, BrokerPlan, Pair, User
from protocol_spec.programs.errors import SettingsError
from protocol_spec.programs.private_files import make_private_directory, write_durably

HERE: Final = Path()
_CLIENTS: Final = ("server.crt", "server.key", "ca.crt")


def with_nodes(given: Mapping[str, Any], before: BrokerPlan | None) -> dict[str, Any]:
    """The options of a plan, with those that follow from its nodes, now or before."""
    known = before.nodes if before is not None else ()
    options = dict(given)
    nodes = options.get("nodes")
    if not nodes and not known:
        return options
    if options.get("bind") not in (None, "0.0.0.0"):  # noqa: S104 - only compared
        raise SettingsError(
            "--bind is for one broker, and every node of a cluster has an address of its own; "
            "nothing was written. Leave it out"
        )
    options["bind"] = ""
    if nodes and options.get("hosts") is None and (before is None or before.hosts == known):
        options["hosts"] = nodes
    if not known:  # it becomes one
        options["root"] = options.get("root") or HERE
        stream = options.get("stream_port") or (before.stream_port if before else None)
        options["stream_port"] = stream or STREAM_PORT
    return options


def directories(path: Path, plan: BrokerPlan) -> dict[str, Path]:
    """Where each node's files are."""
    return {node: path / _place(node) for node in plan.nodes}


def places(path: Path, plan: BrokerPlan) -> dict[str, str]:
    """The same as text."""
    return {node: str(directory) for node, directory in directories(path, plan).items()}


def prepare(path: Path, plan: BrokerPlan) -> None:
    """Make the nodes' directories, and put their certificates there."""
    if not plan.nodes:
        return
    authority_dir = path / "tls" / "nodes"
    _make_private(authority_dir)
    authority = authority_in(authority_dir)
    for node, directory in directories(path, plan).items():
        for place in (path / "nodes", directory, directory / "tls"):
            _make_private(place)
        route = Pair(directory / "tls" / "route.crt", directory / "tls" / "route.key")
        if not authority.still_fits(route, [node]):
            authority.issue_node(route, node)
        trusted = authority.files.certificate.read_bytes()
        write_durably(directory / "tls" / "routes.crt", trusted)
        for name in _CLIENTS:
            if (path / "tls" / name).exists():
                write_durably(directory / "tls" / name, (path / "tls" / name).read_bytes())


def files(plan: BrokerPlan, users: Sequence[User]) -> dict[str, str]:
    """Every file that the nodes read, by its name in the broker's directory."""
    made: dict[str, str] = {}
    for node in plan.nodes:
        here = replace(plan, bind=node if _is_loopback(node) else "")
        texts = nats.files(here, users, server=f"allomfree-{node}", more=_cluster(here))
        made |= {f"{_place(node)}/{name}": text for name, text in texts.items()}
    return made


def _cluster(plan: BrokerPlan) -> str:
    routes = [f"tls://{_in_url(node)}:{plan.cluster_port}" for node in plan.nodes]
    tls = {name: str(plan.root / "tls" / file) for name, file in _ROUTE.items()}
    lines = [
        "cluster {",
        "  name: allomfree",
        f"  listen: {json.dumps(nats.listener(plan, plan.cluster_port))}",
        f"  routes: {json.dumps(routes)}",
        "  no_advertise: true   # clients know all nodes already",
        "  tls {",
        *(f"    {name}: {json.dumps(file)}" for name, file in tls.items()),
        "    verify: true   # in both directions",
        "    timeout: 10",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


_ROUTE: Final = {"cert_file": "route.crt", "key_file": "route.key", "ca_file": "routes.crt"}


def _place(node: str) -> str:
    return f"nodes/{node.replace(':', '-')}"


def _in_url(node: str) -> str:
    return f"[{node}]" if ":" in node else node


def _is_loopback(node: str) -> bool:
    """Several nodes on one machine, to try it: each listens at an address of its own."""
    try:
        return ipaddress.ip_address(node).is_loopback
    except ValueError:
        return False


def _make_private(directory: Path) -> None:
    make_private_directory(directory)
    directory.chmod(0o700)
