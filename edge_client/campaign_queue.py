"""One campaign's reports on their way, and what became of them.

Claim: nothing that arrives can cause a draw. A receipt, a deadline or the campaign's end only lets
a row leave the outbox; anything else that arrives changes nothing (I5, I16).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from edge_client.records import Fate, Membership, Queued
from edge_client.store.outbox import Outbox
from edge_client.trace import Trace
from protocol_spec import (
    Manifest,
    Presence,
    Rejected,
    State,
    decode_receipts,
    decode_state,
    digest8,
    receipt_page,
    receipt_tag,
)

log = logging.getLogger("allomfree.edge")


@dataclass(slots=True)
class Outgoing:
    """A report on its way: when to try next, by the steady clock."""

    row: Queued
    topic: str
    tag: bytes
    attempts: int = 0
    next_try: float = 0.0
    is_awaited: bool = False  # sent on this connection: a receipt may come


class CampaignQueue:
    """The queued reports of one campaign."""

    def __init__(self, membership: Membership, trace: Trace) -> None:
        self.membership = membership
        self.reports: dict[int, Outgoing] = {}
        self.state: State | None = None  # the collector's last word: a hint, nothing more
        self._fates: dict[int, Fate] = {}
        self._trace = trace

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self.membership.name

    @property
    def topics(self) -> list[str]:
        """What to subscribe to: the campaign's state, and the receipts that may be ours."""
        topics, page = self.membership.topics, receipt_page(self._manifest, self.membership.device)
        return [topics.state, topics.receipts_for(page)]

    def add(self, row: Queued) -> None:
        """A report that is in the outbox; one that is known stays as far as it is."""
        if row.round not in self.reports:
            device = self.membership.device
            topic = self.membership.topics.report(device)
            tag = receipt_tag(self._manifest, row.round, device)
            self.reports[row.round] = Outgoing(row, topic, tag)

    def follow(self, rows: list[Queued]) -> None:
        """Hold exactly what is queued in the store: the owner may have withdrawn the rest."""
        rounds = {row.round for row in rows}
        self.reports = {n: report for n, report in self.reports.items() if n in rounds}
        for row in rows:
            self.add(row)

    def send_all_again(self) -> None:
        """On a new connection: whatever has no receipt."""
        for report in self.reports.values():
            report.next_try, report.is_awaited = 0.0, False

    def expire(self, now: float) -> None:
        """Give up what can no longer be counted."""
        for number, report in self.reports.items():
            if now >= report.row.deadline and number not in self._fates:
                self._fates[number] = "missed"
                log.warning("%s: round %d was not counted in time", self.name, number)

    def settle(self, outbox: Outbox) -> None:
        """Write fates down. Raises `StorageFailure`, and then the rows stay and are tried again."""
        if self._fates:
            outbox.finish(self.name, self._fates)
            for number in self._fates:
                self.reports.pop(number, None)
            self._fates = {}

    def hear(self, topic: str, payload: bytes) -> bool:
        """Note a receipt; returns whether the message says that the campaign is closed."""
        if topic == self.membership.topics.state:
            return self._says_closed(payload)
        if topic.startswith(self.membership.topics.receipt_root):
            self._hear_receipts(payload)
        return False

    def _hear_receipts(self, payload: bytes) -> None:
        page = decode_receipts(payload)
        if isinstance(page, Rejected) or page.digest8 != digest8(self._manifest):
            return
        report = self.reports.get(page.round)
        if self._fates.get(page.round) == "counted":
            return  # a page that came again
        if report and report.tag in page.tags:
            self._trace("receipt seen")
            self._fates[page.round] = "counted"
            log.info("%s: round %d was counted", self.name, page.round)

    def _says_closed(self, payload: bytes) -> bool:
        state = decode_state(payload)
        if isinstance(state, Rejected) or state.digest8 != digest8(self._manifest):
            return False
        self.state = state
        return state.presence is Presence.CLOSED

    @property
    def _manifest(self) -> Manifest:
        return self.membership.manifest
