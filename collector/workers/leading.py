"""The worker that leads: it alone fences, seals and publishes, while its lease lasts (W5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from collector.coordinator import Context, Coordinator
from collector.errors import StorageFailure
from collector.health import Status
from collector.ingest.receipts import ReceiptPages
from collector.links import BrokerWatch, Link, Reconnector
from collector.register import Change
from collector.store import Store
from collector.timing import Clock, ClockWatch
from collector.workers.drained import SharedDrain
from collector.workers.feed import put_on_pages

log = logging.getLogger("allomfree.collector")

FENCED: Final = (
    "worker %d (%s) was silent for more than %.0f s and is shut out: what it had not committed is "
    "delivered to others, or sent again by devices. It takes part again when it is back"
)


class Leader:
    """Leads if it can, and knows when it no longer does."""

    def __init__(
        self,
        store: Store,
        around: Context,
        drain: SharedDrain,
        watch: ClockWatch,
        connect: Callable[[], Link],
        own: Clock,
        status: Status,
        restart_broker: Callable[[], None],
    ) -> None:
        self._store = store
        self._around = around
        self._drain = drain
        self._watch = watch
        self._own = own  # this machine's steady clock measures the lease
        self._timing = around.timing
        self._status = status
        self._line: Reconnector[Link] = Reconnector(connect, around.clock, around.timing)
        self._broker = BrokerWatch(around.namespace, around.clock, around.timing, restart_broker)
        self._stuck = ""
        self._epoch: int | None = None
        self._until = self._next = 0.0
        self._pages = ReceiptPages(around.namespace)
        self._coordinator = self._new_desk()
        self._answers: dict[int, int] = {}  # publish: queued answer

    @property
    def leads(self) -> bool:
        """Whether the lease is ours, and lasts, by a clock that no pause can stop."""
        return self._epoch is not None and self._own.steady() < self._until

    @property
    def trouble(self) -> str:
        """What keeps it from publishing."""
        return self._line.trouble or self._stuck

    def turn(self) -> None:
        """Take or keep the lease if it is time, and do what a leader does.

        A `StorageFailure` says that it leads no more, or that nobody knows.
        """
        try:
            if self._own.steady() >= self._next:
                self._renew()
            if self.leads:
                self._lead()
        except StorageFailure:
            self.step_down()
            raise

    def step_down(self) -> None:
        """Publish no more; somebody else does, or we do again with a new lease."""
        if self._epoch is not None:
            log.info("another worker leads")
        self._epoch = None
        self._status.leads = False
        self._status.waiting = {}
        self._stuck = ""
        self._line.drop()

    def close(self, *, last: bool) -> None:
        """Say that nobody collects, if nobody else does."""
        link = self._line.current
        if last and self.leads and link is not None:
            self._coordinator.goodbye(link)
        self._line.drop()

    def _renew(self) -> None:
        before = self._own.steady()
        lease = self._timing.lease_seconds
        epoch = self._store.lead(lease)
        self._next = before + lease / 4
        if epoch is None:
            if self._epoch is not None:
                self.step_down()
            return
        # A moment less than what we were given: the clock here and there may run unequally fast.
        self._until = before + 0.9 * lease
        if epoch != self._epoch:
            self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        """A new lease: nothing that was known of pages or rounds holds."""
        log.info("this worker leads now")
        self._line.drop()
        self._epoch = epoch
        self._status.leads = True
        self._answers.clear()
        self._pages = ReceiptPages(self._around.namespace)
        self._coordinator = self._new_desk()
        self._store.fresh_receipts()  # what is older is in the rounds themselves
        self._coordinator.load()
        self._drain.begin()

    def _new_desk(self) -> Coordinator:
        return Coordinator(self._around, self._pages, self._drain, self._watch)

    # --- what only a leader does -----------------------------------------------------------------

    def _lead(self) -> None:
        link = self._line.attempt()
        if link is not None:
            self._answers.clear()
            self._broker.connected()
            self._coordinator.connected(link)
        link = self._line.current
        if link is not None:
            link.step(0.0)
            answers = link.answers()
            self._coordinator.answered(answers)
            self._drop_answers(answers)
            if link.lost:
                self._line.ended(link.lost)

    def changed(self, change: Change) -> None:
        """Campaigns were opened or closed."""
        if self.leads and self._line.current is not None:
            self._coordinator.changed(self._line.current, change)

    def upkeep(self) -> None:
        """Fence who is silent, seal what is due, publish what is new, delete what is over."""
        if not self.leads:
            return
        try:
            self._upkeep(self._line.current)
        except StorageFailure:
            self.step_down()
            raise

    def _upkeep(self, link: Link | None) -> None:
        for worker in self._store.fence(self._timing.fence_seconds):
            log.warning(FENCED, worker.number, worker.name, self._timing.fence_seconds)
        self._drain.heard(self._store.workers())
        self._drain.tick(reading=link is not None)
        put_on_pages(self._pages, self._store.fresh_receipts())
        waiting = self._coordinator.seal(link, self._status)
        if link is not None and self.leads:
            self._coordinator.clear(link)
            self._answer(link)
            self._coordinator.publish(link)
            self._stuck = self._broker.tick(link)
        self._coordinator.tidy(waiting)

    def _answer(self, link: Link) -> None:
        """Answer devices that asked to be forgotten, whichever worker heard them."""
        on_their_way = set(self._answers.values())
        for queued in self._store.queued_answers(link.free + len(on_their_way)):
            if queued.number not in on_their_way and link.free:
                sent = link.publish(queued.topic, queued.payload, retain=False)
                self._answers[sent] = queued.number

    def _drop_answers(self, answers: Mapping[int, str | None]) -> None:
        mine = [self._answers.pop(n) for n in self._answers.keys() & answers.keys()]
        if mine:
            self._store.drop_answers(mine)
