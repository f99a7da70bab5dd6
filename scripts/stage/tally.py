"""A collector in a hundred lines: counts reports per device and round, and gives receipts.

It takes the place of the real one where only the agent is of interest. It keeps every payload, so
that a test can ask whether two different byte strings ever came for one round.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, Final, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protocol_spec import (
    Manifest,
    Presence,
    ReceiptPage,
    Rejected,
    State,
    Topics,
    decode_report,
    digest8,
    parse_from_device,
    receipt_page,
    receipt_tag,
)
from protocol_spec.programs.names import unguessable
from stage.paho_thread import leave
from stage.processes import StageError

ANSWER_SECONDS: Final = 30.0


class Tally:
    """Subscribes to a campaign's reports and remembers all of them."""

    def __init__(
        self,
        port: int,
        manifest: Manifest,
        *,
        receipts: bool = True,
        keep_session: bool = False,
    ) -> None:
        self.manifest = manifest
        self.topics = Topics(manifest.campaign)
        self.receipts = receipts
        self.payloads: dict[tuple[str, int], set[bytes]] = defaultdict(set)
        self.deliveries: list[tuple[str, bytes]] = []
        self._heard = threading.Condition()
        self._ready = threading.Event()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            "tally" if keep_session else unguessable("tally"),
            clean_session=not keep_session,
            protocol=MQTTProtocolVersion.MQTTv311,
        )
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = self._on_message
        self._port = port

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        if not self._ready.wait(ANSWER_SECONDS):
            raise StageError("the broker did not answer the subscription")
        self._client.publish(self.topics.manifest, self.manifest.to_bytes(), 1, True)
        return self

    def __exit__(self, *_: object) -> None:
        leave(self._client)

    def close_campaign(self) -> None:
        state = State(digest8(self.manifest), Presence.CLOSED, None)
        self._client.publish(self.topics.state, state.encode(), 1, True)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self._client.publish(topic, payload, 1, retain).wait_for_publish(ANSWER_SECONDS)

    def send(self, topic: str, payload: bytes) -> None:
        """QoS 0, for floods."""
        self._client.publish(topic, payload)

    def wait_for(self, reports: int, timeout: float = 60.0) -> None:
        """Until that many different (device, round) pairs were heard."""
        with self._heard:
            if not self._heard.wait_for(lambda: len(self.payloads) >= reports, timeout):
                raise StageError(f"{len(self.payloads)} of {reports} reports in {timeout} s")

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        client.subscribe(self.topics.all_reports, 1)

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        origin = parse_from_device(message.topic)
        report = decode_report(bytes(message.payload))
        if origin is None or isinstance(report, Rejected):
            return
        with self._heard:
            self.deliveries.append((origin.device, bytes(message.payload)))
            self.payloads[origin.device, report.round].add(bytes(message.payload))
            self._heard.notify_all()
        if self.receipts:
            self._give_receipts(report.round, receipt_page(self.manifest, origin.device))

    def _give_receipts(self, number: int, page: int) -> None:
        tags = frozenset(
            receipt_tag(self.manifest, r, device)
            for device, r in self.payloads
            if r == number and receipt_page(self.manifest, device) == page
        )
        receipt = ReceiptPage(digest8(self.manifest), number, page, tags)
        self._client.publish(self.topics.receipt(number, page), receipt.encode(), 1, True)
