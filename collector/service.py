"""The collector at work: read, decide, commit, acknowledge, and look after rounds.

One thread does everything in turn, so the order that exactness needs is the order of the code:
a batch is committed before any of it is acknowledged (I6), on the connection that brought it (I7);
when the disk refuses, nothing more is read and the broker waits (I13, I15).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from collector.device_key import DeviceKey
from collector.errors import StorageFailure
from collector.health import Status
from collector.ingest.admit import Book, Message, admit
from collector.ingest.receipts import ReceiptBook
from collector.mqtt.link import Link, Will
from collector.mqtt.packets import Arrived
from collector.records import POOLED, Campaign, Candidate, Refusal
from collector.rounds import sealing as rounds
from collector.rounds.home_assistant import discovery, discovery_topic
from collector.show.tables import as_json
from collector.store import Store
from protocol_spec import (
    Outcome,
    Presence,
    Rejected,
    Response,
    ResponseStatus,
    Result,
    State,
    Topics,
    decode_request,
    decode_result,
    digest8,
    parse_from_device,
)
from protocol_spec import random_below as below
from protocol_spec.programs.address import BrokerUrl, Credentials
from protocol_spec.programs.errors import BrokerUnreachable
from protocol_spec.programs.mqtt import MQTT_5, Version
from protocol_spec.topics import from_all_devices

STEP: Final = 0.5
RECEIPTS_EVERY: Final = 2.0
UPKEEP_EVERY: Final = 0.5
QUIET: Final = 2.0
SETTLE: Final = 35.0  # NATS (MQTT 3.1.1) waits 30 s before it delivers an unacknowledged one again
BACKLOG_LONGEST: Final = 60.0
SEALING_AT_ONCE: Final = 2.0
REFUSED_PAUSE: Final = 30.0
RECONNECT: Final = 1.0
RECONNECT_LONGEST: Final = 60.0
STORAGE_RETRY: Final = 1.0

StoredResult = tuple[int, int, int, bytes]  # campaign, attribute, round, message
Form = tuple[str, bytes]  # topic, payload

log = logging.getLogger("allomfree.collector")


class Service:
    """Collects for every open campaign of its store."""

    def __init__(
        self,
        store: Store,
        key: DeviceKey,
        broker: BrokerUrl,
        *,
        credentials: Credentials | None = None,
        namespace: str = "allomfree",
        client_id: str = "allomfree-collector",
        keepalive: int = 60,
        home_assistant: str | None = None,
        clock: Callable[[], float] = time.time,
        emit: Callable[[Campaign, Result], None] = lambda _campaign, _result: None,
        trace: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.status = Status()
        self._broker = broker
        self._credentials = credentials or Credentials()
        self._namespace = namespace
        self._client_id = client_id
        self._keepalive = keepalive
        self._home_assistant = home_assistant
        self._clock = clock
        self._emit = emit
        self._trace = trace
        self._receipts = ReceiptBook(namespace)
        self._book = Book({}, frozenset(), key, namespace)
        self._campaigns: dict[int, Campaign] = {}
        self._version: int | None = None
        self._link: Link | None = None
        self._mqtt: Version = MQTT_5
        self._retry_at = 0.0
        self._failures = 0
        self._held: list[Arrived] = []
        self._connected_at = self._settled_at = 0.0
        self._backlog = True
        self._results_at = 0.0
        self._broker_forgot = False
        self._last_accepted: dict[tuple[int, int], float] = {}
        self._results_in_flight: dict[int, tuple[StoredResult, list[Form]]] = {}
        self._next_upkeep = 0.0
        self._next_receipts = 0.0

    # --- the loop ----------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool], beat: Callable[[], None] = lambda: None) -> None:
        """Until told to stop; then finish the batch at hand and say goodbye."""
        self._load_receipts()
        try:
            while not stop():
                self.turn(STEP)
                beat()
        finally:
            self.shut_down()

    def turn(self, wait: float) -> None:
        """One turn: connect if need be, take a batch, and once in a while the upkeep."""
        now = time.monotonic()
        self._refresh()
        if self._link is None and now >= self._retry_at:
            self._connect()
        if self._held:
            self._ingest(self._held)
        elif self._link is not None:
            arrived = self._link.step(wait)
            self._backlog = self._backlog and bool(arrived)
            self._ingest(arrived)
        else:
            time.sleep(min(wait, max(0.0, self._retry_at - now)))
        if self._link is not None and self._link.lost:
            self._disconnected(self._link.lost)
        if time.monotonic() >= self._next_upkeep:
            self._next_upkeep = time.monotonic() + UPKEEP_EVERY
            self._upkeep()

    def shut_down(self) -> None:
        """Say offline and close; the session stays at the broker and keeps what comes."""
        if self._link is not None:
            for campaign in self._book.campaigns.values():
                self._publish_state(campaign, Presence.OFFLINE)
            self._link.close()
            self._link = None

    # --- campaigns ---------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Notice campaigns opened or closed and devices revoked by other processes."""
        version = self.store.changed_elsewhere()
        if version == self._version:
            return
        self._version = version
        before = self._book.campaigns
        self._campaigns = {c.id: c for c in self.store.campaigns()}
        opened = {c.name: c for c in self._campaigns.values() if c.closed is None}
        self._book = Book(opened, self.store.revoked(), self._book.key, self._namespace)
        if self._link is not None:
            for name in opened.keys() - before.keys():
                self._announce(opened[name])
            for name in before.keys() - opened.keys():
                self._withdraw(before[name])

    def _announce(self, campaign: Campaign) -> None:
        """Publish what devices need to know of a campaign."""
        if self._link is None:
            return
        topics = Topics(campaign.name, self._namespace)
        self._link.publish(topics.manifest, campaign.manifest.to_bytes())
        self._publish_state(campaign, Presence.ONLINE)
        self._show_at_home(campaign, discovery(campaign, topics))
        log.info("collecting for %s", campaign.name)

    def _withdraw(self, campaign: Campaign) -> None:
        """A campaign was closed: say so, and take back the invitation."""
        if self._link is None:
            return
        topics = Topics(campaign.name, self._namespace)
        self._publish_state(campaign, Presence.CLOSED)
        self._link.publish(topics.manifest, b"")
        self._show_at_home(campaign, b"")
        log.info("%s is closed", campaign.name)

    def _show_at_home(self, campaign: Campaign, message: bytes) -> None:
        """Tell Home Assistant what there is to read, or with nothing that it is over."""
        if self._link is not None and self._home_assistant is not None:
            self._link.publish(discovery_topic(self._home_assistant, campaign), message)

    def _publish_state(self, campaign: Campaign, presence: Presence) -> None:
        if self._link is not None:
            topics = Topics(campaign.name, self._namespace)
            self._link.publish(topics.state, self._state(campaign, presence))

    def _state(self, campaign: Campaign, presence: Presence) -> bytes:
        last = self.store.last_sealed(campaign.id)
        return State(digest8(campaign.manifest), presence, last).encode()

    # --- connection --------------------------------------------------------------------------

    def _connect(self) -> None:
        link = Link(
            self._broker,
            self._credentials,
            client_id=self._client_id,
            keepalive=self._keepalive,
            version=self._mqtt,
            will=self._will(),
        )
        try:
            link.connect()
        except BrokerUnreachable as error:
            self._disconnected(str(error))
            return
        self._link, self._mqtt, self._failures = link, link.version, 0
        self.status.connected, self.status.trouble = True, ""
        self._connected_at, self._backlog = time.monotonic(), True
        again_later = link.session_present and link.version != MQTT_5
        self._settled_at = self._connected_at + (SETTLE if again_later else QUIET)
        log.info("connected to %s", self._broker)
        link.subscribe(from_all_devices(self._namespace))
        for campaign in self._campaigns.values():
            if campaign.closed is None:
                self._announce(campaign)
            else:  # perhaps closed while nobody could be told
                self._withdraw(campaign)
        self._receipts.publish_again()
        self._broker_forgot = not link.session_present

    def _will(self) -> Will | None:
        """A connection has one last will, so only a single campaign can have it."""
        if len(self._book.campaigns) != 1:
            return None
        (campaign,) = self._book.campaigns.values()
        topics = Topics(campaign.name, self._namespace)
        return Will(topics.state, self._state(campaign, Presence.OFFLINE))

    def _disconnected(self, reason: str) -> None:
        if self.status.trouble != reason:
            log.warning("%s; reports wait at the broker and on the devices", reason)
        if self._link is not None:
            self._link.close()
        self._link = None
        self._held.clear()  # unacknowledged: the broker delivers them again
        self._results_in_flight.clear()
        self.status.connected, self.status.trouble = False, reason
        pause = min(RECONNECT_LONGEST, RECONNECT * 2.0**self._failures)
        self._failures += 1
        self._retry_at = time.monotonic() + pause * (0.5 + below(1 << 16) / (1 << 17))

    # --- ingest ------------------------------------------------------------------------------

    def _ingest(self, arrived: list[Arrived]) -> None:
        """Commit a batch, then acknowledge it; or hold it when the disk refuses."""
        if not arrived:
            return
        reports, requests = self._sort(arrived)
        verdicts = [self._admit(message) for message in reports]
        self._trace("batch in memory")
        try:
            self._commit(verdicts)
            answers = [self._forget(message) for message in requests]
        except StorageFailure as error:
            self._storage_failed(arrived, error)
            return
        self._held = []
        self.status.trouble = ""
        self._trace("batch committed")
        if self._link is not None:
            for topic, payload in filter(None, answers):
                self._link.publish(topic, payload, retain=False)
            self._link.acknowledge(arrived)
        self._trace("batch acknowledged")

    def _sort(self, arrived: Sequence[Arrived]) -> tuple[list[Arrived], list[Arrived]]:
        reports: list[Arrived] = []
        requests: list[Arrived] = []
        for message in arrived:
            is_request = message.topic is not None and message.topic.endswith("/request")
            (requests if is_request else reports).append(message)
        return reports, requests

    def _admit(self, message: Arrived) -> Candidate | Refusal:
        return admit(
            Message(message.topic, message.payload, message.retained), self._book, self._clock()
        )

    def _commit(self, verdicts: Sequence[Candidate | Refusal]) -> None:
        candidates = [v for v in verdicts if isinstance(v, Candidate)]
        refusals = [v for v in verdicts if isinstance(v, Refusal)]
        if not verdicts:
            return
        outcomes = self.store.commit(candidates, refusals)
        for c, outcome in zip(candidates, outcomes):
            if outcome in (Outcome.ACCEPTED, Outcome.DUPLICATE):
                self._receipts.add(c.campaign, c.round, c.page, c.tag)
            if outcome is Outcome.ACCEPTED:
                self._last_accepted[c.campaign, c.round] = time.monotonic()
        self.status.received += len(verdicts)
        self.status.accepted += Counter(outcomes)[Outcome.ACCEPTED]
        self.status.batches += 1
        self.status.largest_batch = max(self.status.largest_batch, len(verdicts))
        self.status.last_commit = time.time()

    def _storage_failed(self, arrived: list[Arrived], error: StorageFailure) -> None:
        if self.status.trouble != str(error):
            log.error("%s", error)
        self._held = arrived
        self.status.trouble = str(error)
        self.status.storage_failures += 1
        time.sleep(STORAGE_RETRY)

    def _forget(self, message: Arrived) -> tuple[str, bytes] | None:
        """Withdraw a device's reports from rounds not yet sealed, and forget the device."""
        origin = parse_from_device(message.topic or "", self._namespace)
        request = decode_request(message.payload)
        campaign = self._book.campaigns.get(origin.campaign) if origin else None
        if origin is None or campaign is None or isinstance(request, Rejected) or message.retained:
            return None
        if request.digest8 != digest8(campaign.manifest):
            return None
        withdrawn = self.store.withdraw(
            campaign, self._book.key.number(campaign.manifest, origin.device)
        )
        for number in self.store.open_rounds(campaign.id):
            self._receipts.reload(campaign.id, number, self.store.receipt_tags(campaign.id, number))
        response = Response(
            request.digest8, request.kind, request.nonce, ResponseStatus.DONE, withdrawn
        )
        topics = Topics(campaign.name, self._namespace)
        return topics.response(origin.device), response.encode()

    # --- upkeep ------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        """Seal what is due, publish receipts and results, clear what is no longer needed."""
        try:
            self._seal_due()
            self._publish_results()
            self._publish_receipts()
            self._clear_receipts()
            self._end_retention()
            self.store.wipe_log()
        except StorageFailure as error:
            if self.status.trouble != str(error):
                log.error("%s", error)
            self.status.trouble = str(error)
            self.status.storage_failures += 1
        else:
            if self._link is not None and not self._held:
                self.status.trouble = ""

    def _drained(self, campaign: Campaign, number: int) -> bool:
        """Whether the broker has nothing left of a round: what it had kept has been read, and no
        report of the round came for a while."""
        now = time.monotonic()
        if now - self._connected_at >= BACKLOG_LONGEST:
            self._backlog = False
        quiet_at = self._last_accepted.get((campaign.id, number), 0.0) + QUIET
        connected = self._link is not None and not self._held
        return connected and not self._backlog and now >= max(self._settled_at, quiet_at)

    def _seal_due(self) -> None:
        began = time.monotonic()
        for campaign in self._campaigns.values():
            for number in list(rounds.due(self.store, campaign, self._clock())):
                if not self._drained(campaign, number):
                    break  # rounds are sealed in order
                self._seal(campaign, number)
                if time.monotonic() - began > SEALING_AT_ONCE:
                    return  # the connection wants attention too

    def _seal(self, campaign: Campaign, number: int) -> None:
        self._trace("sealing")
        made = rounds.seal(self.store, campaign, number, int(self._clock()))
        self._last_accepted.pop((campaign.id, number), None)
        self._trace("sealed")
        for result in made:
            self._emit(campaign, result)
        reports = sum(result.n for result in made if result.round is not None)
        log.info("%s: round %d sealed with %d reports", campaign.name, number, reports)
        if campaign.closed is None:
            self._publish_state(campaign, Presence.ONLINE)

    def _publish_results(self) -> None:
        link = self._link
        if link is None:
            return
        if self._broker_forgot:
            self.store.publish_again()
            self._broker_forgot = False
        for mid, refusal in link.answers().items():
            row, rest = self._results_in_flight.pop(mid, (None, []))
            if row is not None and refusal is None and rest:
                self._send_result(link, row, rest)
            elif row is not None and refusal is None:
                self.store.mark_published(*row)
            elif refusal is not None:
                self._results_at = time.monotonic() + REFUSED_PAUSE
                log.warning("the broker refused a message (%s); check its access list", refusal)
        if time.monotonic() < self._results_at:
            return
        waiting = {row for row, _ in self._results_in_flight.values()}
        for row in self.store.unpublished(link.free):
            if row not in waiting:
                self._send_result(link, row, self._forms(row))

    def _send_result(self, link: Link, row: StoredResult, forms: list[Form]) -> None:
        """One form after the other: the result is published when the last of them is taken."""
        (topic, payload), *rest = forms
        self._results_in_flight[link.publish(topic, payload)] = row, rest

    def _forms(self, row: StoredResult) -> list[Form]:
        """A result's topic and bytes; the pooled one also in JSON, for dashboards."""
        campaign, message = self._campaigns[row[0]], row[3]
        topics = Topics(campaign.name, self._namespace)
        name = campaign.manifest.attributes[row[1]].name
        if row[2] != POOLED:
            return [(topics.result(name, row[2]), message)]
        result = decode_result(message)
        if not isinstance(result, Result):
            raise AssertionError("a stored result does not decode")
        in_json = topics.result_json(name), as_json(campaign, result)
        return [(topics.result(name), message), in_json]

    def _publish_receipts(self) -> None:
        if self._link is None or time.monotonic() < self._next_receipts:
            return
        self._next_receipts = time.monotonic() + RECEIPTS_EVERY
        for topic, payload in self._receipts.take(self._campaigns, self._link.free):
            self._link.publish(topic, payload)

    def _clear_receipts(self) -> None:
        """A round's pages stand one period beyond its deadline, for devices that were asleep."""
        if self._link is None:
            return
        for campaign in self._campaigns.values():
            schedule = campaign.manifest.rounds
            for number in self.store.clearable_receipts(campaign.id):
                if schedule.deadline(number) + schedule.period <= self._clock():
                    self._receipts.forget(campaign.id, number)
                    for topic in self._receipts.topics(campaign, number):
                        self._link.publish(topic, b"")
                    self.store.mark_receipts_cleared(campaign.id, number)

    def _end_retention(self) -> None:
        for campaign in self._campaigns.values():
            over = self._clock() >= campaign.manifest.expires + campaign.manifest.retention
            # Rounds not sealed yet still need to know who took part in the earlier ones.
            waiting = next(rounds.due(self.store, campaign, self._clock()), None) is not None
            if over and not waiting and self.store.drop_devices(campaign.id):
                log.info("%s: retention is over, devices forgotten", campaign.name)

    def _load_receipts(self) -> None:
        self._refresh()
        for campaign in self._campaigns.values():
            for number in self.store.open_rounds(campaign.id):
                self._receipts.load(
                    campaign.id, number, self.store.receipt_tags(campaign.id, number)
                )
