"""A worker's own part: a source, its batches, and signs of life."""

from __future__ import annotations

from collections.abc import Sequence

from collector.ingest.batch import Ingest
from collector.links import BATCH, Message, OpenSource, Reconnector, Source
from collector.store import Store
from collector.timing import Clock, Timing


class Intake:
    """Takes what became of a batch: answers go to the store for the leader to publish, and only
    then is the batch acknowledged, so that a request is answered however a worker ends."""

    free = BATCH

    def __init__(self, store: Store) -> None:
        self.source: Source | None = None
        self._store = store
        self._answers: list[tuple[str, bytes]] = []
        self._owed: list[Message] = []  # committed, and not acknowledged yet

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> int:  # noqa: ARG002
        """An answer to a device."""
        self._answers.append((topic, payload))
        return 0

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """These are committed."""
        self._owed += messages
        self.settle()

    def settle(self) -> None:
        """Acknowledge what is committed once its answers are in the store."""
        if self._answers:
            self._store.queue_answers(self._answers)
            self._answers = []
        if self._owed and self.source is not None:
            self.source.acknowledge(self._owed)
        self._owed = []

    def release(self) -> None:
        """The connection is gone, and what it owed comes again. Answers stay."""
        self.source, self._owed = None, []


class Reader:
    """Counts what a source brings, and knows how far that is proven."""

    def __init__(
        self, store: Store, ingest: Ingest, connect: OpenSource, clock: Clock, timing: Timing
    ) -> None:
        self._ingest = ingest
        self._clock = clock
        self._intake = Intake(store)
        self._ahead: list[Message] = []  # read while the batch before them was committed
        store.meanwhile = self._work_ahead
        self._line: Reconnector[Source] = Reconnector(connect, clock, timing)

    @property
    def connected(self) -> bool:
        """Whether there is a source."""
        return self._line.current is not None

    @property
    def trouble(self) -> str:
        """Why there is none."""
        return self._line.trouble

    @property
    def drained(self) -> float:
        """Everything that the broker took for this worker before then is committed."""
        return 0.0 if self._line.current is None else self._line.current.drained

    def mark(self, moment: float) -> None:
        """It is this moment by the database: what was taken before it can be proven."""
        if self._line.current is not None:
            self._line.current.mark(moment)

    def turn(self, wait_seconds: float) -> None:
        """Take the batch that the storage refused before, or else the next one.

        A `StorageFailure` leaves the batch where it is, unacknowledged.
        """
        made = self._line.attempt()
        if made is not None:
            self._intake.source = made
        source = self._line.current
        if source is None:
            self._clock.sleep(min(wait_seconds, self._line.rest_seconds))
            return
        try:
            self._take(source, wait_seconds)
        finally:
            if source.lost:
                self._line.ended(source.lost)
                self._ingest.release()
                self._intake.release()
                self._ahead = []

    def _take(self, source: Source, wait_seconds: float) -> bool:
        """Whether there was a batch."""
        self._ingest.watch()
        self._intake.settle()
        messages = self._ingest.held or self._next(source, wait_seconds)
        if messages:
            self._line.was_useful()
            self._ingest.take(self._intake, messages)
        return bool(messages)

    def _next(self, source: Source, wait_seconds: float) -> list[Message]:
        """The next batch; it is not waited for if some of it is here."""
        came: list[Message] = []
        if len(self._ahead) < BATCH:
            came = source.step(0.0 if self._ahead else wait_seconds)
        if source.lost:  # what was read before comes again, on another connection
            self._ahead = []
        self._ahead += came
        messages, self._ahead = self._ahead[:BATCH], self._ahead[BATCH:]
        return messages

    def _work_ahead(self) -> None:
        """The database has work to do, and so have we: read the next batch (I13), or, when it is
        here, decide on it."""
        if len(self._ahead) < BATCH:
            self._read_ahead()
        else:
            self._ingest.prepare(self._ahead[:BATCH])

    def _read_ahead(self) -> None:
        source = self._line.current
        while source is not None and len(self._ahead) < BATCH:
            came = source.step(0.0)
            self._ahead += came
            if not came:
                return

    def finish(self, moment: float, seconds: float) -> None:
        """Count what is on its way to this worker alone, and take nothing more."""
        source, limit = self._line.current, self._clock.monotonic() + seconds
        if source is None:
            return
        source.retire(moment)
        quiet = False
        while source.lost is None and source.drained < moment and not quiet:
            before = self._clock.monotonic()
            if before >= limit:
                return
            quiet = not self._take(source, seconds / 10)

    def close(self, *, stay: bool) -> None:
        """Say goodbye: to return, or for others to take over."""
        source = self._line.current
        if source is not None:
            source.close(stay=stay)
        self._line.current = None
