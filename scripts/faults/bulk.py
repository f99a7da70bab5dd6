"""Many devices that do as agents do: send, and send again until the receipt or the end.

They wait as long as agents do before they send again, and longer each time: devices that were less
patient would bury a broker under what it already has. Beside what a device would remember they note
when the broker answered for each report, because a report that the broker took in time must be
counted even if its device never hears of it.
"""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_client.records import Timing
from faults.campaigns import bulk_name, bulk_report
from protocol_spec import (
    Manifest,
    Rejected,
    Topics,
    decode_receipts,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.system import random_client_id
from testbed.brokers import leave, publish
from testbed.processes import TestbedError

TURN_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 8.0
LAST_MINUTE: Final = 3  # one device in so many sends for the first time just before the deadline
LAST_SECONDS: Final = 4.0


class Receipts:
    """Every tag that ever stood on a receipt page of some campaigns, read past all faults."""

    def __init__(self, port: int, authority: str | None) -> None:
        self.authority = authority
        self._port = port
        self._tags: dict[tuple[bytes, int, int], set[bytes]] = defaultdict(set)
        self._filters: list[str] = []
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            random_client_id("receipts"),
            protocol=MQTTProtocolVersion.MQTTv311,
        )
        self._client.reconnect_delay_set(1, 2)
        if authority:
            self._client.tls_set_context(ssl.create_default_context(cafile=authority))
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message

    def __enter__(self) -> Self:
        self._client.connect_async("localhost", self._port, keepalive=10)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        leave(self._client)

    def follow(self, manifest: Manifest) -> None:
        """Read a campaign's pages, also after every new connection."""
        name = f"{Topics(manifest.campaign).receipt_root}#"
        self._filters.append(name)
        self._client.subscribe(name, 0)

    def has(self, digest: bytes, number: int, page: int, tag: bytes) -> bool:
        """Whether a tag ever stood on a page."""
        return tag in self._tags[digest, number, page]

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        for name in self._filters:
            client.subscribe(name, 0)

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        page = decode_receipts(bytes(message.payload))
        if not isinstance(page, Rejected):
            self._tags[page.digest8, page.round, page.page].update(page.tags)


class BulkDevices:
    """The devices of one campaign, and what they know of every report."""

    def __init__(
        self,
        manifest: Manifest,
        devices: int,
        receipts: Receipts,
        timing: Timing,
    ) -> None:
        self.manifest = manifest
        self.devices = devices
        self.answered: dict[tuple[int, int], float] = {}  # by round and device: the broker's PUBACK
        self.counted: set[tuple[int, int]] = set()  # what has its receipt
        self.sent = 0
        self._receipts = receipts
        self._patience = Patience(timing)
        self._trusted = Path(receipts.authority) if receipts.authority else None
        self._url = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        names = [bulk_name(number) for number in range(devices)]
        self._topics = [Topics(manifest.campaign).report(name) for name in names]
        self._pages = [receipt_page(manifest, name) for name in names]
        self._names = names
        receipts.follow(manifest)

    def start(self, url: str) -> None:
        self._url = url
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(ANSWER_SECONDS * 2)
        self.look_for_receipts()

    def look_for_receipts(self) -> None:
        """Of every round that has begun."""
        for number in range(self.manifest.rounds.count):
            if self.manifest.rounds.opens(number) <= time.time():
                for device in range(self.devices):
                    self._is_counted(number, device)

    def _run(self) -> None:
        schedule = self.manifest.rounds
        while not self._stopping.wait(TURN_SECONDS) and time.time() < schedule.end:
            for number in range(schedule.count):
                if schedule.opens(number) <= time.time() < schedule.deadline(number):
                    self._send(number, self._due(number))

    def _due(self, number: int) -> list[int]:
        """Devices that wait for a receipt and whose time has come."""
        is_last = time.time() >= self.manifest.rounds.deadline(number) - LAST_SECONDS
        begun = [d for d in range(self.devices) if is_last or d % LAST_MINUTE]
        due = self._patience.due(number, begun)
        return [device for device in due if not self._is_counted(number, device)]

    def _is_counted(self, number: int, device: int) -> bool:
        """Whether a device has its receipt."""
        if (number, device) not in self.counted:
            tag = receipt_tag(self.manifest, number, self._names[device])
            digest = self.manifest.digest[:8]
            if not self._receipts.has(digest, number, self._pages[device], tag):
                return False
            self.counted.add((number, device))
        return True

    def _send(self, number: int, devices: list[int]) -> None:
        if not devices:
            return
        reports = ((self._topics[d], bulk_report(self.manifest, number, d)) for d in devices)
        try:
            self.sent += publish(
                self._url, reports, ca_file=self._trusted, answer_seconds=ANSWER_SECONDS
            )
        except TestbedError:  # some may have come through: they will be sent again
            self._patience.failed()
            return
        self._patience.sent(number, devices)
        now = time.time()
        if now < self.manifest.rounds.deadline(number):
            self.answered.update(dict.fromkeys(((number, d) for d in devices), now))


class Patience:
    """When devices of one broker send again: each after a pause that doubles, and all that wait
    once there is a connection again, which is tried after a pause that doubles, too."""

    def __init__(self, timing: Timing, clock: Callable[[], float] = time.monotonic) -> None:
        self._timing = timing
        self._clock = clock
        self._next: dict[tuple[int, int], float] = {}  # by round and device
        self._attempts: Counter[tuple[int, int]] = Counter()
        self._failures = 0
        self._retry_at = 0.0

    def due(self, number: int, devices: Sequence[int]) -> list[int]:
        """Of these devices those whose time has come."""
        now = self._clock()
        if now < self._retry_at:
            return []
        return [device for device in devices if self._next.get((number, device), 0.0) <= now]

    def sent(self, number: int, devices: Iterable[int]) -> None:
        """The broker took a report of each."""
        self._failures, now = 0, self._clock()
        for place in ((number, device) for device in devices):
            pause = self._timing.resend * 2.0 ** self._attempts[place]
            self._attempts[place] += 1
            self._next[place] = now + _jitter(min(self._timing.resend_longest, pause))

    def failed(self) -> None:
        """The connection ended: whatever has no receipt is sent on the next one."""
        pause = min(self._timing.reconnect_longest, self._timing.reconnect * 2.0**self._failures)
        self._failures += 1
        self._retry_at = self._clock() + _jitter(pause)
        self._next.clear()


def _jitter(pause: float) -> float:
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 - only when something is sent
