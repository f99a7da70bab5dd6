"""Ingest: from a message to a counted report with a receipt.

    admit.py     may this message be counted? A pure verdict, and a cache of report prefixes
    batch.py     `count`: decide and commit in one transaction; holding on failure; forgetting
    flood.py     devices that send far too much are suspended for a while
    receipts.py  which reports are durably counted, published for the devices

The service counts through `batch.Ingest`; `count` is the same decision and transaction for one list
of messages, which the simulator and tests use.
"""

from __future__ import annotations

from collector.ingest.admit import OpenCampaigns
from collector.ingest.batch import Counted, count

__all__ = ["Counted", "OpenCampaigns", "count"]
