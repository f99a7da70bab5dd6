"""Ingest: from a message to a counted report with a receipt.

    admit.py     may this message be counted? The pure verdict
    batch.py     `count`: decide, commit in one transaction, note receipts; and holding on failure
    clearing.py  receipts that nobody waits for leave the broker
    flood.py     devices that send far too much are suspended for a while
    forget.py    devices ask to be forgotten
    receipts.py  which reports are durably counted, told to the devices
    recognise.py reports like those admitted before, a batch at once

`ingest.count` is the one way in which reports are counted.
"""

from __future__ import annotations

from collector.ingest.admit import OpenCampaigns
from collector.ingest.batch import Counted, count

__all__ = ["Counted", "OpenCampaigns", "count"]
