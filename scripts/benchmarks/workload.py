"""What several benchmarks use: the campaign and its reports, and brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from collector.brokers.config import GO_RUNTIME, on_this_machine
from protocol_spec import Manifest, Topics, make_report
from testbed.brokers import Broker, Message, Mosquitto, Nats
from testbed.processes import make_manifest


def manifest(
    k: int,
    *,
    period_seconds: int = 86_400,
    rounds: int = 2,
    grace_seconds: int = 86_400,
    first: int | None = None,
    **settings: Any,
) -> Manifest:
    """A campaign about one attribute `a` with values `v0`, `v1`, …; it began a moment ago."""
    start = first or int(time.time()) - min(60, period_seconds // 2)
    schedule = {"first": start, "period": period_seconds, "count": rounds, "grace": grace_seconds}
    values = [f"v{i}" for i in range(k)]
    return make_manifest({"a": values}, schedule, **{"receipt_pages": 1000, **settings})


def reports(campaign: Manifest, count: int, *, number: int = 0) -> Iterator[Message]:
    """One identical report of round `number` from each of `count` devices."""
    topics, body = Topics(campaign.campaign), bytes(campaign.body_formats[0].length)
    payload = make_report(campaign, number, 0, body).encode()
    return ((topics.report(f"device-{device}"), payload) for device in range(count))


class UnsyncedNats(Nats):
    """NATS that leaves syncing to the system: the broker's disk is not what is measured here."""

    sync = ""


class RoomyMosquitto(Mosquitto):
    """As `broker-config` writes it: long queues, and many messages in flight."""

    extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 2000\n"


class Embedded(Nats):
    """The broker with the configuration that the collector writes for its embedded one."""

    environment: ClassVar[Mapping[str, str]] = GO_RUNTIME

    @property
    def ports(self) -> list[int]:
        return [self.port]  # no workers pull from it

    def configuration(self) -> str:
        return on_this_machine(self.directory, "127.0.0.1", self.port)


def trusting(broker: Broker) -> tuple[str, ...]:
    """The collector's options for the broker's certificate."""
    return ("--ca-file", str(broker.ca_file)) if broker.tls else ()
