"""mosquitto's configuration, access list and password file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collector.brokers.access import EVERY_CAMPAIGN, Role, device_access
from collector.brokers.plan import (
    LARGEST_PACKET,
    LARGEST_QUEUE,
    SESSION_DAYS,
    BrokerPlan,
    User,
)

_HEAD = "# Written by `allomfree-collector broker-config`, anew at every change: do not edit.\n"


def files(plan: BrokerPlan, users: Sequence[User]) -> dict[str, str]:
    """Every file mosquitto reads, by name."""
    written = {"mosquitto.conf": _config(plan), "acl": _access_list(plan, users)}
    if plan.auth == "password":
        written["passwords"] = _passwords(users)
    return written


def _config(plan: BrokerPlan) -> str:
    lines = [
        f"listener {plan.port} {plan.bind}".rstrip(),
        f"certfile {plan.root}/tls/server.crt",
        f"keyfile {plan.root}/tls/server.key",
        *_proof(plan),
        "allow_anonymous false",
        "# A session belongs to a user: nobody can take another's by naming it.",
        "use_username_as_clientid true",
        f"acl_file {plan.root}/acl",
        "# Limits are for everybody: mosquitto has none for one user or one listener.",
        f"max_packet_size {LARGEST_PACKET}",
        "# What waits for a collector that is away: reports are small, and receipts make losses",
        "# harmless, but an overflow costs everybody a second sending.",
        "max_queued_messages 1000000",
        f"max_queued_bytes {LARGEST_QUEUE}",
        f"persistent_client_expiration {SESSION_DAYS}d",
        "max_inflight_messages 2000",
        "persistence true",
        f"persistence_location {plan.root}/data/",
        "autosave_interval 30",
        f"pid_file {plan.root}/broker.pid",
        f"log_dest file {plan.root}/broker.log",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "connection_messages false",
        "sys_interval 0",
    ]
    if plan.run_as:
        lines.append(f"user {plan.run_as}")
    return _HEAD + "\n".join(lines) + "\n"


def _proof(plan: BrokerPlan) -> list[str]:
    """How clients authenticate."""
    if plan.auth == "password":
        return [f"password_file {plan.root}/passwords"]
    return [
        f"cafile {plan.root}/tls/ca.crt",
        f"crlfile {plan.root}/tls/revoked.crl",
        "require_certificate true",
        "use_identity_as_username true",
    ]


def _access_list(plan: BrokerPlan, users: Sequence[User]) -> str:
    """Patterns serve every device; other roles and revoked devices are named. Campaigns are named
    because mosquitto retains what any writer asks it to, on each topic it may write."""
    sections = [section for user in users for section in _named(plan, user)]
    device = device_access("%u", plan.namespace, _campaigns(plan))
    patterns = [f"pattern write {name}" for name in device.write]
    patterns += [f"pattern read {name}" for name in device.read]
    return _HEAD + "\n\n".join([*sections, "\n".join(patterns)]) + "\n"


def _campaigns(plan: BrokerPlan) -> Sequence[str]:
    return EVERY_CAMPAIGN if plan.campaigns is None else plan.campaigns


def _named(plan: BrokerPlan, user: User) -> Iterator[str]:
    if user.revoked:  # also for a connection that is open already
        yield f"user {user.name}\ntopic deny #"
    elif user.role is not Role.DEVICE:
        allowed = plan.access(user)
        own = device_access(user.name, plan.namespace, _campaigns(plan))  # patterns grant it
        lines = [f"user {user.name}"]
        lines += [f"topic deny {name}" for name in own.write]
        lines += [f"topic write {name}" for name in allowed.write]
        lines += [f"topic read {name}" for name in allowed.read]
        yield "\n".join(lines)


def _passwords(users: Sequence[User]) -> str:
    return "".join(f"{user.name}:{user.password}\n" for user in users if not user.revoked)
