"""How many pages of receipts a campaign needs, and whether those it has are enough."""

from __future__ import annotations

import math

from protocol_spec.limits import DEVICES_PER_PAGE, MAX_RECEIPT_PAGES, PAGE_TAGS


def pages_for(devices: int) -> int:
    """The pages to set for so many devices."""
    return min(max(1, math.ceil(devices / DEVICES_PER_PAGE)), MAX_RECEIPT_PAGES)


def receipts_on(pages: int) -> int:
    """How many receipts stand on so many pages at a time."""
    return pages * PAGE_TAGS


def too_few_pages(pages: int, devices: int) -> str | None:
    """What happens when more devices come than fit on the pages, and what to do before it does."""
    if devices <= receipts_on(pages):
        return None
    return (
        f"receipt_pages = {pages} has room for {receipts_on(pages):,} receipts at a time, and "
        f"{devices:,} devices are expected. All are counted, but receipts take turns, and devices "
        f"that miss theirs send again. Set receipt_pages = {pages_for(devices)} before opening"
    )
