"""The devices of a run: many in one thread that behave as agents do, and real agents.

In bulk campaigns every device has a value of its own: a loss shows as a counter of 0, a double as a
counter of 2. Bulk devices wait as long as agents do before they send again, and longer each time:
less patient devices would bury a broker under what it already has. They also note when the broker
acknowledged each report, because a report that the broker took in time must be counted even if its
device never learns of it.
"""

from __future__ import annotations

import logging
import ssl
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_client import EdgeClient, Policy
from edge_client.records import Queued, Timing
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
from protocol_spec.programs.settings import Credentials
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
LAST_MINUTE: Final = 3  # one device in three sends for the first time just before the deadline
LAST_SECONDS: Final = 4.0
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
        self._client.connect_async("localhost", self._port, keepalive=KEEPALIVE_SECONDS)
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
        return tag in self._tags[digest, number, page]

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        for name in self._filters:
            client.subscribe(name, 0)

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        page = decode_receipts(bytes(message.payload))
        if not isinstance(page, Rejected):
            self._tags[page.digest8, page.round, page.page].update(page.tags)


class BulkDevices:
    """The devices of one campaign, and what they know of every report (by round and device)."""

    def __init__(
        self, manifest: Manifest, devices: int, receipts: Receipts, timing: Timing
    ) -> None:
        self.manifest = manifest
        self.devices = devices
        self.acknowledged: dict[tuple[int, int], float] = {}  # when the broker's PUBACK came
        self.counted: set[tuple[int, int]] = set()  # what has its receipt
        self.sent = 0
        self._receipts = receipts
        self._resends = _ResendSchedule(timing)
        self._ca_file = Path(receipts.authority) if receipts.authority else None
        self._url = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.names = [f"bulk-{number}" for number in range(devices)]
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
        """Devices that wait for a receipt and whose pause is over."""
        is_last = time.time() >= self.manifest.rounds.deadline(number) - LAST_SECONDS
        begun = [d for d in range(self.devices) if is_last or d % LAST_MINUTE]
        due = self._resends.due(number, begun)
        return [device for device in due if not self._is_counted(number, device)]

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
        except TestbedError:  # some may have come through: they will be sent again
            self._resends.failed()
            return
        self._resends.sent(number, devices)
        now = time.time()
        if now < self.manifest.rounds.deadline(number):
            self.acknowledged.update(dict.fromkeys(((number, d) for d in devices), now))


class _ResendSchedule:
    """When devices of one broker send again: each after a pause that doubles, and all that wait
    once there is a connection again, which is tried after a pause that doubles, too."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._next: dict[tuple[int, int], float] = {}  # by round and device
        self._attempts: Counter[tuple[int, int]] = Counter()
        self._backoff = Backoff(
            time.monotonic,
            timing.reconnect_seconds,
            timing.reconnect_longest_seconds,
            timing.stable_after_seconds,
        )

    def due(self, number: int, devices: Sequence[int]) -> list[int]:
        now = time.monotonic()
        if self._backoff.seconds_left:
            return []
        return [device for device in devices if self._next.get((number, device), 0.0) <= now]

    def sent(self, number: int, devices: Sequence[int]) -> None:
        self._backoff.connected()
        now = time.monotonic()
        for key in ((number, device) for device in devices):
            first, longest = self._timing.resend_seconds, self._timing.resend_longest_seconds
            self._next[key] = now + backoff_pause(first, longest, self._attempts[key])
            self._attempts[key] += 1

    def failed(self) -> None:
        """The connection ended: whatever has no receipt is sent on the next one."""
        self._backoff.ended(was_connected=False)
        self._next.clear()


class Agents:
    """Real agents in a process that can be killed -9, with a state directory each."""

    def __init__(
        self, place: Path, clock: Path, manifest: Manifest, names: Sequence[str], authority: str
    ) -> None:
        self.place = place
        self.names = names
        self._manifest = manifest
        self._drawn: dict[str, dict[tuple[int, bytes], Queued]] = {name: {} for name in names}
        program = [sys.executable, "-m", "faults.clock", str(clock), __file__]
        place.mkdir(parents=True)
        command = [*program, str(place), authority, *names]
        self.process = Process("a process of agents", command, place / "log")

    def join(self, broker: str) -> None:
        """Every device draws its attribute; once, before anything fails."""
        policy = Policy(max_eps_inf=self._manifest.eps_inf, min_period=1)
        for name in self.names:
            with EdgeClient(self.place / name, policy=policy) as client:
                client.join(client.invitation(manifest=self._manifest, broker=broker), device=name)

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
        rows = (row for name in self.names for row in self._outbox(name))
        return not any(row.fate == "queued" for row in rows)

    def _outbox(self, name: str) -> list[Queued]:
        with EdgeClient(self.place / name, exclusive=False) as client:
            return client.store.reports(client.find("agents").name)


def main(place: Path, authority: str, names: Sequence[str]) -> None:
    """The process of `Agents`, which runs until it is killed."""
    logging.getLogger("allomfree").addHandler(logging.NullHandler())
    logging.getLogger("allomfree").propagate = False
    runners = []
    for name in names:
        client = EdgeClient(
            place / name,
            policy=Policy(min_period=1),
            credentials=Credentials(ca_file=authority or None),
            keepalive=KEEPALIVE_SECONDS,
            timing=AGENT_TIMING,
        )
        runners.append(client.runner(lambda _: "green"))
    while True:
        for runner in runners:
            runner.tick(wait=0.0)
        time.sleep(AGENT_TURN_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
