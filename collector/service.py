"""The collector at work: connect, read, count, and, as the leader, seal and publish.

One thread does everything in turn, so the order that exactness needs is the order of the code: a
batch is committed before any of it is acknowledged (I6), on the connection that brought it (I7);
when the storage refuses, nothing more is read and the broker waits (I13, I15).

One worker alone and one of several run the same loop. A worker alone has a store that nobody else
writes to, leads uncontested, and publishes on the connection that brings its reports.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from collector.brokers.auditor import limiting
from collector.brokers.embedded import EmbeddedBroker
from collector.data_dir import DeviceKey, client_id, session_name
from collector.errors import Fenced, NotLeading, StorageFailure
from collector.health import Status
from collector.ingest.admit import OpenCampaigns
from collector.ingest.batch import Ingest
from collector.ingest.flood import FloodGuard
from collector.leader import CampaignCache, Leader, Options
from collector.links import BATCH, Connect, Links, Message, Reconnector, Source
from collector.links.mqtt import SHARED_SESSION_SECONDS, PahoConnector, PahoLink, Subscription
from collector.links.stream import StreamConnector
from collector.records import Campaign
from collector.rounds.publishing import publish_manifest
from collector.settings import Settings, StreamAddress
from collector.store import Store
from collector.timing import (
    DEFAULT_TIMING,
    LOCAL_BROKER_TIMING,
    ClockMemory,
    ClockWatch,
    StoreTime,
    Timing,
)
from protocol_spec import Result, Topics
from protocol_spec.programs.settings import BrokerUnreachable, SettingsError
from protocol_spec.programs.system import random_client_id

__all__ = ["Options", "Service", "publish_invitation", "service_for"]

FINISH_SECONDS: Final = 3.0  # for what is on its way to a worker that is stopped

log = logging.getLogger("allomfree.collector")


class Service:
    """Collects its part, or everything, for every open campaign of its store."""

    def __init__(
        self, store: Store, key: DeviceKey, links: Links, options: Options | None = None
    ) -> None:
        self._options = options = options or Options()
        self._timing = timing = options.timing
        self.status = Status()
        self._store = store
        self._alone = links.alone
        self._time = StoreTime(options.clock, timing, shared=not links.alone)
        self._clock = clock = self._time.clock()
        watch = ClockWatch(clock, timing, ClockMemory(options.clock_dir))
        known = OpenCampaigns({}, frozenset(), key, options.namespace)
        self._campaigns = CampaignCache(store, known)
        self._ingest = Ingest(
            store, known, FloodGuard(clock, timing), self.status, watch.latest, options.trace
        )
        self._leader = Leader(
            store, links, self._campaigns, self._time, watch, self.status, options
        )
        self._watch = watch
        self._source: Reconnector[Source] = Reconnector(
            lambda: links.source(self._leader.will() if links.alone else None), clock, timing
        )
        self._prefetched: list[Message] = []  # read while the batch before them was committed
        store.meanwhile = self._prefetch
        self._number: int | None = None
        self._storage_trouble = ""
        self._next_beat = self._next_upkeep = 0.0

    def run(self, stop: Callable[[], bool], beat: Callable[[], None] = lambda: None) -> None:
        """Run until `stop` returns true, then finish the current batch and disconnect.

        `beat` is called at the start and after every turn.
        """
        beat()
        try:
            while not stop():
                self.turn(self._timing.step_seconds)
                beat()
        finally:
            self.shut_down()

    def turn(self, wait_seconds: float) -> None:
        """One turn: a sign of life, a batch, and once in a while the upkeep."""
        drain = self._leader.drain
        drain.tick()
        drain.counts_time = False
        try:
            self._stay_enlisted()
            self._leader.turn()  # first: NATS makes its stream for the first MQTT client
            self._read(wait_seconds)
            self._upkeep()
        except Fenced as error:
            log.warning("%s", error)
            self._number = None
            self._leader.step_down()
        except NotLeading:
            self._leader.step_down()
        except StorageFailure as error:
            if self._storage_trouble != str(error):
                log.error("%s", error)
            self._storage_trouble = str(error)
            self.status.storage_failures += 1
            self._clock.sleep(self._timing.storage_retry_seconds)
        else:
            drain.counts_time = self._leader.leads and self._source.current is not None
            if self._storage_trouble:
                log.info("the storage takes writes again; counting goes on")
            self._storage_trouble = ""
        self.status.connected = self._source.current is not None
        self.status.trouble = self._storage_trouble or self._source.trouble or self._leader.trouble

    def shut_down(self) -> None:
        """Let others take over, or, as the last worker, publish that nobody collects. The broker
        keeps the last one's session and what comes for it."""
        last = True
        with suppress(StorageFailure):
            live = [worker for worker in self._store.workers() if not worker.fenced]
            last = all(worker.number == self._number for worker in live)
            if not last:
                self._finish()
        self._leader.close(last=last)
        if self._source.current is not None:
            self._source.current.close(stay=last)
            self._source.current = None
        with suppress(StorageFailure):
            self._store.retire()

    # --- signs of life -------------------------------------------------------------------------

    def _stay_enlisted(self) -> None:
        """Enlist if need be, and beat if it is time."""
        if self._number is None:
            self._number = self._store.enlist(self._options.name)
            self._next_beat = 0.0
            if not self._alone:
                self.status.worker = self._number
                log.info("this is worker %d", self._number)
        if self._clock.monotonic() >= self._next_beat:
            self._beat()
            if self._source.current is not None and not self._alone:
                self._source.current.mark(self._time.moment())
            # Campaigns may have been opened or closed and devices revoked by other processes.
            change = self._campaigns.refresh(self._clock.now())
            if change is not None:
                self._ingest.campaigns = self._campaigns.admitted
                self._leader.changed(*change)

    def _beat(self) -> None:
        """Say that this worker lives, and how far its source is drained."""
        self._next_beat = self._clock.monotonic() + self._timing.beat_every_seconds
        source = self._source.current
        self._time.update(self._store.beat(0.0 if source is None else source.drained))

    # --- reading -------------------------------------------------------------------------------

    def _read(self, wait_seconds: float) -> None:
        """Take the batch that the storage refused before, or else the next one.

        A `StorageFailure` leaves the batch where it is, unacknowledged.
        """
        made = self._source.attempt()
        if made is not None and self._alone and made.link is not None:
            self._leader.connected(made.link)
        source = self._source.current
        if source is None:
            self._clock.sleep(min(wait_seconds, self._source.seconds_left))
            return
        try:
            self._take(source, wait_seconds)
        finally:
            if source.lost:
                self._source.ended(source.lost)
                self._ingest.release()
                self._prefetched = []
                if self._alone:
                    self._leader.disconnected()

    def _take(self, source: Source, wait_seconds: float) -> bool:
        """Count a batch; whether there was one."""
        self._ingest.begin_turn()
        self._settle(source)
        messages = self._ingest.held or self._next(source, wait_seconds)
        if messages:
            self._source.reset_backoff()
            self._ingest.commit(messages)
            self._settle(source)
        return bool(messages)

    def _next(self, source: Source, wait_seconds: float) -> list[Message]:
        """The next batch; it is not waited for if some of it is here."""
        came: list[Message] = []
        if len(self._prefetched) < BATCH:
            came = source.step(0.0 if self._prefetched else wait_seconds)
            if self._alone and source.link is not None:
                self._leader.take_answers()
        if source.lost:  # what was read before is redelivered on another connection
            self._prefetched = []
        if not self._prefetched:
            return came
        self._prefetched += came
        messages, self._prefetched = self._prefetched[:BATCH], self._prefetched[BATCH:]
        return messages

    def _settle(self, source: Source) -> None:
        """Acknowledge what is committed; requests once their answers are in the store."""
        if self._ingest.queue_answers():
            self._leader.answer_requests()
        self._ingest.acknowledge(source)

    def _prefetch(self) -> None:
        """While the database commits: read the next batch (I13), or decide on it if it is here."""
        source = self._source.current
        if len(self._prefetched) >= BATCH:
            self._ingest.decide_prefetched(self._prefetched[:BATCH])
            return
        while source is not None and len(self._prefetched) < BATCH:
            came = source.step(0.0)
            self._prefetched += came
            if not came:
                return

    def _finish(self) -> None:
        """Count what is on its way to this worker alone, and take nothing more."""
        source, limit = self._source.current, self._clock.monotonic() + FINISH_SECONDS
        if source is None:
            return
        moment = self._store.now()
        source.retire(moment)
        while source.lost is None and source.drained < moment:
            if self._clock.monotonic() >= limit or not self._take(source, FINISH_SECONDS / 10):
                return

    # --- upkeep --------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        """Let the leader do its work, and clear what is no longer needed."""
        now = self._clock.monotonic()
        if now < self._next_upkeep:
            return
        self._next_upkeep = now + self._timing.upkeep_every_seconds
        self._watch.tick()
        drain = self._leader.drain
        if self._alone and drain.waits:
            self._beat()
        self._leader.upkeep()
        hints = [self._time.hint(), self._watch.hint(self.status)]
        if hints[0] and not self.status.clock:
            log.warning("%s", hints[0])
        self.status.clock = "; ".join(filter(None, hints))
        self._ingest.campaigns = self._campaigns.admitted
        if self._alone and drain.waits and self._source.current is not None:
            self._source.current.mark(self._time.moment())
        self._store.wipe_log()


# --- connecting, by the settings -----------------------------------------------------------------

ANSWER_SECONDS: Final = 10.0
NO_STREAM: Final = (
    "the broker configured here lets nobody pull reports, and several workers need that; nothing "
    "was started. Run: allomfree-collector broker-config nats --stream-port 4222"
)


def service_for(
    settings: Settings,
    store: Store,
    key: DeviceKey,
    emit: Callable[[Campaign, Result], None],
    embedded: EmbeddedBroker | None = None,
    timing: Timing | None = None,
) -> Service:
    """The service for these settings: alone, or one of several workers where the store is shared.

    `embedded` is the broker that is run next to it.
    """
    options = Options(
        timing=timing or (DEFAULT_TIMING if embedded is None else LOCAL_BROKER_TIMING),
        emit=emit,
        name=socket.gethostname(),
        namespace=settings.namespace,
        home_assistant=settings.home_assistant or None,
        clock_dir=settings.data_dir,
    )
    return Service(store, key, _links(settings, store, options, embedded), options)


def _links(
    settings: Settings, store: Store, options: Options, embedded: EmbeddedBroker | None
) -> Links:
    """A worker alone has one connection. Several take reports from NATS's own stream where its
    address is known, else by shared subscription."""
    namespace, clock, timing = settings.namespace, options.clock, options.timing
    restart = (lambda: None) if embedded is None else embedded.restart
    if settings.store is None:
        connect = _connector(settings, client_id(settings), embedded)
        return Links(
            lambda will: Subscription(connect(will), namespace, clock=clock, timing=timing),
            restart_broker=restart,
        )

    def named(name: str) -> str:
        """Every session has a name of its own, though workers may have one configuration."""
        return name if settings.client_id is None else f"{settings.client_id}-{name}"

    publisher = _connector(settings, named(store.leader_session()), embedded)
    if settings.stream is not None or embedded is not None:
        stream = _stream(settings, embedded)
        return Links(lambda _: stream(), publisher, drained_is_global=True, restart_broker=restart)
    own = _connector(
        settings,
        named(session_name(settings.data_dir)),
        None,
        session_seconds=SHARED_SESSION_SECONDS,
    )
    return Links(
        lambda _: Subscription(own(None), namespace, shared=True, clock=clock, timing=timing),
        publisher,
    )


def _stream(settings: Settings, embedded: EmbeddedBroker | None) -> StreamConnector:
    named = settings.stream
    for address in named or ():
        address.check_plaintext(settings.allow_plaintext)
    if named is None and embedded is not None and embedded.streams is None and not embedded.trouble:
        raise SettingsError(NO_STREAM)

    def addresses() -> tuple[StreamAddress, ...]:
        return named or (embedded.streams if embedded is not None else None) or ()

    return StreamConnector(
        addresses, settings.credentials(), settings.namespace, keepalive=settings.keepalive
    )


def _connector(
    settings: Settings, name: str, embedded: EmbeddedBroker | None, **options: int
) -> Connect:
    broker, keepalive = settings.required_broker(), settings.keepalive
    connect = PahoConnector(
        broker, settings.credentials(), client_id=name, keepalive=keepalive, **options
    )
    if embedded is not None:
        return embedded.connecting(connect)
    return limiting(settings.broker_dir, broker, connect)


def publish_invitation(settings: Settings, campaign: Campaign, signature: bytes) -> str | None:
    """Publish a campaign's manifest without the service, so that devices can join as soon as it is
    open; None when the broker took it, else why not.

    With a user name the connection keeps the session that goes with it, because a broker may take
    that name for the collector's own.
    """
    named = settings.username is not None
    link = PahoLink(
        settings.required_broker(),
        settings.credentials(),
        client_id=client_id(settings) if named else random_client_id("open"),
        persistent=named,
    )
    try:
        link.connect()
        topics = Topics(campaign.name, settings.namespace)
        sent = publish_manifest(link.publish, topics, campaign.manifest, signature)
        limit, answers = time.monotonic() + ANSWER_SECONDS, dict[int, str | None]()
        while time.monotonic() < limit and not link.lost:
            link.step(0.1)
            answers |= link.answers()
            if answers.keys() >= set(sent):
                return next((answers[number] for number in sent if answers[number]), None)
        return link.lost or "the broker did not answer in time"
    except BrokerUnreachable as error:
        return str(error)
    finally:
        link.close()
