"""The devices of a run: many in one thread that behave as agents do, and real agents.

In bulk campaigns every device has a value of its own: a loss shows as a counter of 0, a double as a
counter of 2. Bulk devices wait as long as agents do before they send again, and longer each time:
less patient devices would bury a broker under what it already has. They also note when the broker
acknowledged each report, because a report that the broker took in time must be counted even if its
device never learns of it. Half of them rely on that and never send again: nothing else would show
a report that the collector acknowledged and did not store.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any, Final, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

import testbed.agents
from edge_client import EdgeClient
from edge_client.records import Queued, Timing
from faults.program import Control
from protocol_spec import (
    Manifest,
    Rejected,
    Topics,
    decode_receipts,
    make_report,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.backoff import Backoff, backoff_pause
from protocol_spec.programs.system import random_client_id
from testbed.brokers import leave, publish
from testbed.processes import Process, TestbedError, make_manifest

AGENT_TIMING: Final = Timing(
    step_seconds=0.2,
    resend_seconds=2.0,
    resend_longest_seconds=4.0,
    reconnect_seconds=0.5,
    reconnect_longest_seconds=2,
)
AGENT_TURN_SECONDS: Final = 0.2
KEEPALIVE_SECONDS: Final = 10
TURN_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 8.0
LAST_SECONDS: Final = 4.0  # before the deadline: then one device in three sends for the first time
SPREAD: Final = 97  # moments over which the devices of one kind are distributed
BUDGET: Final[dict[str, Any]] = {"eps_inf": 1.0, "eps_1": 0.5, "min_reports": 2}


def bulk_manifest(slug: str, devices: int, first: int, period: int, count: int) -> Manifest:
    """A value for each device, and one for nobody. Reports may come for one more period."""
    values = [*(f"v{number}" for number in range(devices)), "nobody"]
    schedule = {"first": first, "period": period, "count": count, "grace": period}
    return make_manifest({"own": values}, schedule, protocol="L-OSUE", slug=slug, **BUDGET)


def agents_manifest(first: int, period: int, count: int) -> Manifest:
    """For real agents: reports may come for a day, so every one can be compared at the end."""
    schedule = {"first": first, "period": period, "count": count, "grace": 86_400}
    return make_manifest({"own": ("red", "green", "blue")}, schedule, slug="agents", **BUDGET)


class Receipts:
    """Every tag that was ever on a receipt page of some campaigns, read past all faults."""

    def __init__(self, port: int, authority: str) -> None:
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
        self._client.connect_async("localhost", self._port, keepalive=KEEPALIVE_SECONDS)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        leave(self._client)

    def follow(self, manifest: Manifest) -> None:
        """Read a campaign's pages, also after every new connection."""
        self._filters.append(f"{Topics(manifest.campaign).receipt_root}#")
        self._client.subscribe(self._filters[-1], 0)

    def has(self, digest: bytes, number: int, page: int, tag: bytes) -> bool:
        return tag in self._tags[digest, number, page]

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        for name in self._filters:
            client.subscribe(name, 0)

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        page = decode_receipts(bytes(message.payload))
        if not isinstance(page, Rejected):
            self._tags[page.digest8, page.round, page.page].update(page.tags)


Key = tuple[int, int]  # round and device


class BulkDevices:
    """The devices of one campaign, and what they know of every report."""

    def __init__(
        self, manifest: Manifest, devices: int, receipts: Receipts, timing: Timing
    ) -> None:
        self.manifest = manifest
        self.devices = devices
        self.acknowledged: dict[Key, float] = {}  # when the broker's PUBACK came
        self.counted: set[Key] = set()  # what has its receipt
        self.sent = 0
        self.names = [f"bulk-{number}" for number in range(devices)]
        self._receipts = receipts
        self._timing = timing
        self._backoff = Backoff(
            time.monotonic,
            timing.reconnect_seconds,
            timing.reconnect_longest_seconds,
            timing.stable_after_seconds,
        )
        self._next: dict[Key, float] = {}  # when it is sent again
        self._attempts: Counter[Key] = Counter()
        self._ca_file = Path(receipts.authority) if receipts.authority else None
        self._url = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._topics = [Topics(manifest.campaign).report(name) for name in self.names]
        self._pages = [receipt_page(manifest, name) for name in self.names]
        receipts.follow(manifest)

    def start(self, url: str) -> None:
        self._url = url
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(ANSWER_SECONDS * 2)
        for number in range(self.manifest.rounds.count):
            for device in range(self.devices):
                self._is_counted(number, device)

    def _run(self) -> None:
        rounds = self.manifest.rounds
        while not self._stopping.wait(TURN_SECONDS) and time.time() < rounds.end:
            for number in range(rounds.count):
                now = time.time()
                is_open = rounds.opens(number) <= now < rounds.deadline(number)
                if is_open and not self._backoff.seconds_left:
                    self._send(
                        number, [d for d in range(self.devices) if self._is_due(number, d, now)]
                    )

    def _is_due(self, number: int, device: int, now: float) -> bool:
        """First at the beginning, in the course of the round, or just before the deadline; again
        after a pause, unless there is a receipt."""
        if (number, device) in self._next:
            due = self._next[number, device]
        else:
            rounds, part = self.manifest.rounds, device % SPREAD / SPREAD
            opens, last = rounds.opens(number), rounds.deadline(number) - LAST_SECONDS
            due = (opens, opens + part * rounds.period, last + part * LAST_SECONDS)[device % 3]
        return now >= due and not self._is_counted(number, device)

    def _is_counted(self, number: int, device: int) -> bool:
        """Whether a device has its receipt."""
        if (number, device) not in self.counted:
            tag = receipt_tag(self.manifest, number, self.names[device])
            digest = self.manifest.digest[:8]
            if not self._receipts.has(digest, number, self._pages[device], tag):
                return False
            self.counted.add((number, device))
        return True

    def _send(self, number: int, devices: list[int]) -> None:
        """Each device's report has its own value and nothing else."""
        if not devices:
            return
        form = self.manifest.body_formats[0]
        reports = (
            (self._topics[d], make_report(self.manifest, number, 0, form.encode(d)).encode())
            for d in devices
        )
        try:
            self.sent += publish(
                self._url, reports, ca_file=self._ca_file, answer_seconds=ANSWER_SECONDS
            )
        except TestbedError:  # some may have come through; what waits for a receipt is sent again
            self._backoff.ended(was_connected=False)
            self._next = {key: at for key, at in self._next.items() if at == inf}
            return
        self._backoff.connected()
        now, timing = time.time(), self._timing
        for key in ((number, device) for device in devices):
            if now < self.manifest.rounds.deadline(number):
                self.acknowledged[key] = now
            pause = backoff_pause(
                timing.resend_seconds, timing.resend_longest_seconds, self._attempts[key]
            )
            self._attempts[key] += 1
            self._next[key] = now + pause if key[1] // 3 % 2 else inf


class Agents:
    """Real agents in a process that can be killed -9, under a clock of its own."""

    def __init__(
        self, place: Path, manifest: Manifest, broker: str, names: Sequence[str], authority: str
    ) -> None:
        place.mkdir(parents=True)
        (place / "manifest").write_bytes(manifest.to_bytes())
        self.control = Control(place / "control")
        self._place = place
        self._drawn: dict[str, dict[tuple[int, bytes], Queued]] = {name: {} for name in names}
        share = testbed.agents.Share(
            str(place),
            broker,
            {name: {"own": "green"} for name in names},
            ca_file=authority,
            keepalive=KEEPALIVE_SECONDS,
            turn_seconds=AGENT_TURN_SECONDS,
            timing=asdict(AGENT_TIMING),
        )
        file = share.command(place / "share")[-1]
        command = [*self.control.prefix, testbed.agents.__file__, file]
        self.process = Process("a process of agents", command, place / "log")

    def wait_until_joined(self) -> None:
        """Every device draws its attribute; once, before anything fails."""
        self.process.wait_for("agents to join", lambda: "{" in self.process.log_text())

    def record_drawn(self) -> None:
        """Note what was drawn so far: a device forgets what it sent in rounds long past."""
        for name, known in self._drawn.items():
            known |= {(row.round, row.payload): row for row in self._outbox(name)}

    def drawn(self) -> dict[str, list[Queued]]:
        """Every report that every device ever drew, by the device's own memory."""
        self.record_drawn()
        return {name: list(known.values()) for name, known in self._drawn.items()}

    @property
    def have_delivered(self) -> bool:
        """Whether nothing waits for a receipt."""
        rows = (row for name in self._drawn for row in self._outbox(name))
        return not any(row.fate == "queued" for row in rows)

    def _outbox(self, name: str) -> list[Queued]:
        with EdgeClient(self._place / name, exclusive=False) as client:
            return client.store.reports(client.find("agents").name)
