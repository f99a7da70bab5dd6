"""Workers in processes of their own, on a real broker and a real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from collector.data_dir import DeviceKey, open_shared
from collector.links.stream import StreamConnector
from collector.settings import StreamAddress
from collector.store import Store, Worker
from protocol_spec import Manifest, ReceiptPage, Topics, decode_receipts, make_report
from protocol_spec.programs.settings import Credentials
from protocol_spec.programs.system import random_client_id
from testbed.brokers import Broker, Nats
from tests.support.collector_processes.campaign import own_bits, own_namespace
from tests.support.collector_processes.driver import CollectorRun, Launcher, Options
from tests.support.collector_processes.wire import Message, retained
from tests.support.databases import new_schema
from tests.support.edge_processes import wait_until
from tests.support.network import paho


class Site:
    """A campaign whose round 0 is sealed in a while, round 1 has begun, and their workers."""

    def __init__(
        self, place: Path, broker: Broker, launcher: Launcher, devices: int, *, rest: int = 20
    ) -> None:
        """`rest` seconds are left of round 0."""
        self.devices = devices
        self.namespace = own_namespace()
        self.broker = broker
        self._place = place
        self._launcher = launcher
        self._address = new_schema()
        self.manifest: Manifest = own_bits(
            devices, first=int(time.time()) - 610, period=600, grace=10 + rest, count=2
        )
        self.store: Store = open_shared(self._address)
        self.campaign = self.store.open_campaign(self.manifest, int(time.time()))
        self.topics = Topics(self.campaign.name, self.namespace)
        place.mkdir(parents=True, exist_ok=True)
        DeviceKey(place / "device.key")
        if isinstance(broker, Nats):
            self._deliver_again_soon(broker)

    def _deliver_again_soon(self, broker: Nats) -> None:
        """Make the consumer that workers share, as an operator may who is impatient."""
        paho(broker)(random_client_id("first"), False).close()  # which has the stream made
        here = StreamAddress(False, "127.0.0.1", broker.stream_port)
        StreamConnector(lambda: [here], Credentials(), self.namespace, ack_seconds=2)().close()

    def close(self) -> None:
        self.store.close()

    def start(self, name: str) -> CollectorRun:
        """A worker that reads: its data directory is its own, the device key everybody's."""
        data = self._place / name
        data.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(self._place / "device.key", data / "device.key")
        stream = None
        if isinstance(self.broker, Nats):
            stream = f"nats://127.0.0.1:{self.broker.stream_port}"
        run = self._launcher.start(
            Options(
                str(data), self.broker.url, self.namespace, store=self._address.url, stream=stream
            )
        )
        run.wait_for("this is worker")
        return run

    def worker_of(self, run: CollectorRun) -> int:
        """The number it has now."""
        words = run.log.read_text().split("this is worker ")
        return int(words[-1].split('"')[0])

    def live(self) -> list[Worker]:
        return [worker for worker in self.store.workers() if not worker.fenced]

    def wait_for_leader(self, *, not_this: int | None = None) -> int:
        """Who leads and has connected; the number."""
        found: list[int] = []

        def leads() -> bool:
            found[:] = [w.number for w in self.store.workers() if w.leads]
            return bool(found) and found[0] != not_this

        wait_until(leads, timeout=60)
        return found[0]

    def report(self, device: int, number: int = 0) -> Message:
        """The device's own bit and no other."""
        body = self.manifest.body_formats[0].encode(device)
        payload = make_report(self.manifest, number, 0, body).encode()
        return self.topics.report(f"device-{device}"), payload

    def reports(self, devices: range, number: int = 0) -> list[Message]:
        return [self.report(device, number) for device in devices]

    def counted(self, number: int = 0) -> int:
        tally = self.store.tallies(self.campaign.id, number).get(0)
        return 0 if tally is None else tally.n

    def counts(self, number: int = 0) -> list[int]:
        tally = self.store.tallies(self.campaign.id, number).get(0)
        return [] if tally is None else tally.counts.tolist()

    def sealed(self) -> bool:
        return self.store.last_sealed(self.campaign.id) is not None

    def wait(self, done: Callable[[], bool], timeout: float = 90.0) -> None:
        wait_until(done, timeout=timeout)

    def tags(self, number: int = 0) -> set[bytes]:
        """Every tag on the pages of a round that the broker keeps."""
        kept = retained(self.broker.port, f"{self.topics.receipt_root}{number}/+")
        pages = (decode_receipts(data) for data in kept.values())
        return {tag for page in pages if isinstance(page, ReceiptPage) for tag in page.tags}


def pause(run: CollectorRun) -> None:
    """SIGSTOP: it does nothing more, and nobody tells it."""
    os.kill(run.pid, signal.SIGSTOP)


def resume(run: CollectorRun) -> None:
    os.kill(run.pid, signal.SIGCONT)
