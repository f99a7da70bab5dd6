"""The campaign that benchmarks of the collector use, its reports, and their broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

from protocol_spec import Manifest, Report, Topics, digest8
from testbed.brokers import Message, Nats


def manifest(
    k: int,
    begun_seconds: int = 60,
    protocol: str = "auto",
    *,
    period_seconds: int = 86_400,
    rounds: int = 2,
    grace_seconds: int = 86_400,
    receipt_pages: int = 1000,
) -> Manifest:
    """A campaign about one attribute `a` with values `v0`, `v1`, …; it began a moment ago."""
    first = int(time.time()) - begun_seconds
    values = ", ".join(f'"v{i}"' for i in range(k))
    return Manifest.from_toml(
        f"""
        format = 1
        slug = "bench"
        title = "Benchmark"
        purpose = "Measure"
        owner = "Nobody"
        contact = "nobody@example.org"
        eps_inf = 2.0
        eps_1 = 0.6
        receipt_pages = {receipt_pages}
        [rounds]
        first = {first}
        period = {period_seconds}
        count = {rounds}
        grace = {grace_seconds}
        [[attributes]]
        name = "a"
        question = "Which?"
        protocol = "{protocol}"
        values = [{values}]
        """
    )


def reports(campaign: Manifest, count: int, *, number: int = 0) -> Iterator[Message]:
    """A report of one round from each of `count` devices, all alike."""
    topics, body = Topics(campaign.campaign), bytes(campaign.body_formats[0].length)
    payload = Report(digest8(campaign), number, 0, body).encode()
    return ((topics.report(f"device-{device}"), payload) for device in range(count))


class UnsyncedNats(Nats):
    """NATS that leaves syncing to the system: the broker's disk is not what is measured here."""

    def command(self) -> list[str]:
        made = super().command()
        config = self.directory / "nats.conf"
        config.write_text(config.read_text().replace(', sync_interval: "1s"', ""))
        return made
