"""NATS's configuration: with users and TLS for a network, or without for this machine only."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from collector.brokers.access import Role
from collector.brokers.plan import LARGEST_PACKET, SESSION_DAYS, BrokerPlan, User
from collector.nats.consumer import needed

LIMITED: Final = ("UPDATE.$MQTT_rmsgs", "PURGE.$MQTT_rmsgs", "UPDATE.$MQTT_msgs")
"""What the auditor may do to the streams in which NATS keeps what MQTT asks for; see limits.py."""

SERVER: Final = "allomfree"
RELOAD_SECONDS: Final = 10.0
_RELOADED: Final = b"Reloaded server configuration"
_NOT_RELOADED: Final = b"Failed to reload server configuration"
_OWN_CLIENTS: Final = "127.0.0.1:-1"  # any port of this machine, as the file of ports says
SYNC_SECONDS: Final = 1
"""How often NATS syncs. What it acknowledged survives its own end, kill -9 included, because the
system holds it; a power cut takes the last second or two, and devices send that again, because they
have no receipt for it. Syncing every message would make each cost twenty times as much."""

GO_RUNTIME: Final = {"GOGC": "400", "GOMEMLIMIT": "256MiB"}
"""For the server of ours: it looks for garbage a fourth as often, while it is small. A live report
costs it 14 % less processor time, and the machine counts 11 % more of them (medians of four runs of
100,000, in turns). Whoever has set these in the environment knows better."""

_HEAD = "# Written by allomfree-collector, anew at every change: do not edit.\n"


def files(
    plan: BrokerPlan, users: Sequence[User], *, server: str = SERVER, more: str = ""
) -> dict[str, str]:
    """Every file NATS reads, by name. In a cluster each server has a name of its own, and more."""
    tls = [f"cert_file: {_text(plan.root / 'tls/server.crt')}"]
    tls += [f"key_file: {_text(plan.root / 'tls/server.key')}"]
    tls += ["timeout: 20   # seconds: small devices on slow lines need more than NATS's two"]
    if plan.auth == "certificate":
        tls += [f"ca_file: {_text(plan.root / 'tls/ca.crt')}", "verify_and_map: true"]
    secured = ["tls {", *(f"  {line}" for line in tls), "}"]
    kept = [f"stream_replicas: {plan.replicas}"] if plan.nodes else []
    body = _server(plan.root, listener(plan, plan.port), [*kept, *secured], server) + more
    if plan.stream_port is not None:
        body = body.replace(_OWN_CLIENTS, listener(plan, plan.stream_port), 1)
        body += "\n".join(["# for workers, which pull reports", *secured, ""])
    return {"nats.conf": f'{body}include "users.conf"\n', "users.conf": _users(plan, users)}


def listener(plan: BrokerPlan, port: int) -> str:
    """Where it listens, for a port."""
    bind = plan.bind or "0.0.0.0"  # noqa: S104 - TLS and users guard it
    return f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"


def on_this_machine(directory: Path, host: str, port: int) -> str:
    """A configuration without users, for a listener that no other machine can reach."""
    return _server(directory, f"{host}:{port}", [])


def _server(root: Path, at: str, mqtt: Sequence[str], name: str = SERVER) -> str:
    lines = [
        f"server_name: {_text(name) if name != SERVER else name}",
        f'listen: "{_OWN_CLIENTS}"',
        f"ports_file_dir: {_text(root)}",
        f"log_file: {_text(root / 'broker.log')}",
        "logfile_size_limit: 10MB",
        f"pid_file: {_text(root / 'broker.pid')}",
        f"max_payload: {LARGEST_PACKET}",
        "max_subscriptions: 1000   # of one connection",
        "jetstream {",
        f"  store_dir: {_text(root / 'jetstream')}",
        f'  sync_interval: "{SYNC_SECONDS}s"   # what a power cut costs; devices send it again',
        "}",
        "mqtt {",
        f"  listen: {_text(at)}",
        "  max_ack_pending: 20000",
        "  reject_qos2_publish: true   # it would store them until they are released",
        "  downgrade_qos2_subscribe: true",
        f'  consumer_inactive_threshold: "{SESSION_DAYS * 24}h"',
        *(f"  {line}" for line in mqtt),
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
    if user.role is Role.AUDITOR:
        write += [f"$JS.API.STREAM.{limited}" for limited in LIMITED]
    types = ["MQTT"]
    if user.role is Role.COLLECTOR and plan.stream_port is not None:
        types.append("STANDARD")
        more_write, more_read = needed(plan.namespace)
        write, read = write + more_write, read + more_read
    if plan.auth == "certificate":
        proof = f"user: {_text(f'CN={user.name}')}"
    else:
        proof = f"user: {_text(user.name)}, password: {_text(user.password or '')}"
    return (
        f"    {{ {proof}, allowed_connection_types: {json.dumps(types)}, permissions: {{\n"
        f"      publish: {{ allow: {json.dumps(write)} }}\n"
        f"      subscribe: {{ allow: {json.dumps(read)} }} }} }}"
    )


def subjects(topic_filter: str) -> list[str]:
    """A topic filter as NATS subjects; `a/#` also means `a` itself."""
    subject = topic_filter.replace("/", ".").replace("+", "*")
    if subject.endswith(".#"):
        return [f"{subject[:-1]}>", subject[:-2]]
    return [subject]


def has_reloaded(log: Path, size: int, seconds: float = RELOAD_SECONDS) -> bool:
    """Whether NATS took its files over: it refuses some changes, and says so only in its log.

    `size` is what the log had before NATS was asked; a smaller one was begun anew.
    """
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        said = _said_since(log, size)
        if _NOT_RELOADED in said:
            return False
        if _RELOADED in said:
            return True
        time.sleep(0.05)
    return False


def _said_since(log: Path, size: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(size if log.stat().st_size >= size else 0)
            return file.read()
    except OSError:
        return b""


def _text(value: object) -> str:
    return json.dumps(str(value))
