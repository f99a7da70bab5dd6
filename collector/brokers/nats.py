"""NATS's configuration: with users and TLS for a network, or without for this machine only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from collector.brokers.plan import LARGEST_PACKET, BrokerPlan, User

_HEAD = "# Written by allomfree-collector, anew at every change: do not edit.\n"


def files(plan: BrokerPlan, users: Sequence[User]) -> dict[str, str]:
    """Every file NATS reads, by name."""
    tls = [f"cert_file: {_text(plan.root / 'tls/server.crt')}"]
    tls += [f"key_file: {_text(plan.root / 'tls/server.key')}"]
    tls += ["timeout: 20   # seconds: small devices on slow lines need more than NATS's two"]
    if plan.auth == "certificate":
        tls += [f"ca_file: {_text(plan.root / 'tls/ca.crt')}", "verify_and_map: true"]
    bind = plan.bind or "0.0.0.0"  # noqa: S104 - TLS and users guard it
    listener = f"[{bind}]:{plan.port}" if ":" in bind else f"{bind}:{plan.port}"
    body = _server(plan.root, listener, ["tls {", *(f"  {line}" for line in tls), "}"])
    return {"nats.conf": f'{body}include "users.conf"\n', "users.conf": _users(plan, users)}


def on_this_machine(directory: Path, host: str, port: int) -> str:
    """A configuration without users, for a listener that no other machine can reach."""
    return _server(directory, f"{host}:{port}", [])


def _server(root: Path, listener: str, tls: Sequence[str]) -> str:
    lines = [
        "server_name: allomfree",
        'listen: "127.0.0.1:-1"',
        f"log_file: {_text(root / 'broker.log')}",
        "logfile_size_limit: 10MB",
        f"pid_file: {_text(root / 'broker.pid')}",
        f"max_payload: {LARGEST_PACKET}",
        "jetstream {",
        f"  store_dir: {_text(root / 'jetstream')}",
        "  sync_interval: always   # what is acknowledged is on disk",
        "}",
        "mqtt {",
        f"  listen: {_text(listener)}",
        "  max_ack_pending: 20000",
        *(f"  {line}" for line in tls),
        "}",
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _users(plan: BrokerPlan, users: Sequence[User]) -> str:
    rows = "\n".join(_user(plan, user) for user in users if not user.revoked)
    return f"{_HEAD}authorization {{\n  timeout: 30\n  users: [\n{rows}\n  ]\n}}\n"


def _user(plan: BrokerPlan, user: User) -> str:
    allowed = plan.access(user)
    write = [s for name in allowed.write for s in subjects(name)]
    read = [s for name in allowed.read for s in subjects(name)]
    if plan.auth == "certificate":
        proof = f"user: {_text(f'CN={user.name}')}"
    else:
        proof = f"user: {_text(user.name)}, password: {_text(user.password or '')}"
    return (
        f'    {{ {proof}, allowed_connection_types: ["MQTT"], permissions: {{\n'
        f"      publish: {{ allow: {json.dumps(write)} }}\n"
        f"      subscribe: {{ allow: {json.dumps(read)} }} }} }}"
    )


def subjects(topic_filter: str) -> list[str]:
    """A topic filter as NATS subjects; `a/#` also means `a` itself."""
    subject = topic_filter.replace("/", ".").replace("+", "*")
    if subject.endswith(".#"):
        return [f"{subject[:-1]}>", subject[:-2]]
    return [subject]


def _text(value: object) -> str:
    return json.dumps(str(value))
