"""Connecting to the stream of reports: to one server of a cluster after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from collector.nats.connection import NatsConnection
from collector.nats.consumer import ACK_SECONDS, inbox
from collector.nats.stream import ReportStream
from collector.settings import StreamAddress
from protocol_spec.programs.address import Credentials
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.programs.names import unguessable


class StreamConnector:
    """Makes a source of one of the servers there are now; the next time, of another."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[StreamAddress]],
        credentials: Credentials,
        namespace: str,
        *,
        keepalive: int = 60,
        ack_seconds: int = ACK_SECONDS,
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._namespace = namespace
        self._keepalive = keepalive
        self._ack_seconds = ack_seconds
        self._attempts = 0

    def __call__(self) -> ReportStream:
        """A new connection. Raises `BrokerUnreachable` saying why there is none."""
        addresses = self._addresses()
        if not addresses:
            raise BrokerUnreachable("NATS has not said yet at which port workers may pull reports")
        address = addresses[self._attempts % len(addresses)]
        self._attempts += 1
        replies = f"{inbox(self._namespace)}.{unguessable('w')}"
        connection = NatsConnection(
            address, self._credentials, inbox=replies, keepalive=self._keepalive
        )
        connection.connect()
        source = ReportStream(
            connection, self._namespace, replies, time.monotonic, self._ack_seconds
        )
        source.open()
        self._attempts -= 1  # the same server again, as long as it is good
        return source
