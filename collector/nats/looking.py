"""The stream and its consumer at a server, looked at: nothing is made or changed."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

from collector.mqtt import BATCH
from collector.nats.connection import NatsConnection
from collector.nats.consumer import (
    NO_CONSUMER,
    SECOND,
    STREAM,
    code_of,
    consumer_fault,
    consumer_name,
    filters_of,
    inbox,
    number_of,
    stream_fault,
    subjects_of_devices,
)
from collector.settings import StreamAddress
from protocol_spec.programs.address import Credentials
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.programs.findings import Finding
from protocol_spec.programs.names import unguessable

LEAST_ACK_SECONDS: Final = 10  # a batch may wait so long for a busy database


def look_at(address: StreamAddress, credentials: Credentials, namespace: str) -> Finding:
    """Whether workers can share the reports of this server."""
    replies = f"{inbox(namespace)}.{unguessable('d')}"
    connection = NatsConnection(address, credentials, inbox=replies)
    try:
        connection.connect()
        with closing(connection):
            connection.subscribe(f"{replies}.>")
            stream = connection.demand(f"$JS.API.STREAM.INFO.{STREAM}")
            fault = stream_fault(stream)
            if fault is not None:
                return _bad(address, fault)
            subject = f"{STREAM}.{consumer_name(namespace)}"
            info = connection.demand(f"$JS.API.CONSUMER.INFO.{subject}")
    except BrokerUnreachable as error:
        return Finding("stream", False, str(error))
    return _consumer(address, info, namespace)


def _consumer(address: StreamAddress, info: dict[str, Any], namespace: str) -> Finding:
    name = consumer_name(namespace)
    if code_of(info) == NO_CONSUMER:
        return Finding("stream", True, f"{address} answers; the first worker makes {name}")
    if filters_of(info.get("config")) == subjects_of_devices(namespace):
        text = f"{address}: {name} has two filters, which is slow; the next worker changes that"
        return Finding("stream", True, text)
    fault = consumer_fault(info, namespace) or _limits(name, info)
    if fault is not None:
        return _bad(address, fault)
    waiting, unacknowledged = (info.get(key) for key in ("num_pending", "num_ack_pending"))
    told = f"{waiting} reports wait and {unacknowledged} are not acknowledged yet"
    return Finding("stream", True, f"{address} answers; of {name}, {told}")


def _limits(name: str, info: dict[str, Any]) -> str | None:
    """An operator may change these, but not to everything."""
    wait = (number_of(info, "config", "ack_wait") or 0) / SECOND
    if wait < LEAST_ACK_SECONDS:
        return (
            f"its consumer {name} delivers again after {wait:g} s (ack_wait), before a batch is "
            f"counted; set it to 30 s"
        )
    flying = number_of(info, "config", "max_ack_pending") or 0
    if 0 < flying < BATCH:
        return (
            f"its consumer {name} lets only {flying} reports be unacknowledged (max_ack_pending), "
            f"less than a batch; set it to {BATCH} for each worker"
        )
    return None


def _bad(address: StreamAddress, fault: str) -> Finding:
    return Finding("stream", False, f"{address} cannot be used by workers: {fault}")
