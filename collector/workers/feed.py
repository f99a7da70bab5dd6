"""What all workers counted, put on the leader's pages of receipts."""

from __future__ import annotations

from collections.abc import Iterable

from collector.ingest.receipts import ReceiptPages
from collector.store import ReceiptBatch, ReceiptKind


class NoPages(ReceiptPages):
    """For a worker that only counts: the leader hears of it from the store."""

    def note(self, *_: object) -> None:
        """The store has noted it."""

    def remove(self, *_: object) -> None:
        """The store has noted it."""


def put_on_pages(pages: ReceiptPages, batches: Iterable[ReceiptBatch]) -> None:
    """In order: what was withdrawn stays off."""
    for batch in batches:
        rows = zip(batch.pages.tolist(), batch.tags.tolist())
        if batch.kind is ReceiptKind.COUNTED:
            pages.load(batch.campaign, batch.round, rows)
            continue
        put = pages.repeat if batch.kind is ReceiptKind.REPEATED else pages.remove
        for page, tag in rows:
            put(batch.campaign, batch.round, page, tag)
