"""Publishers in a process of their own: many connections, and one that listens to receipts."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.campaign import reports
from collector.links.mqtt import PahoLink
from protocol_spec import Manifest, ReceiptPage, Topics, decode_receipts, receipt_tag
from protocol_spec.programs.settings import Credentials, parse_broker
from testbed.brokers import Message, publish
from testbed.processes import TestbedError

Times = npt.NDArray[np.float64]
LONGEST_SECONDS = 120.0


class Receipts:
    """When the receipt of each report was first seen."""

    def __init__(self, campaign: Manifest, count: int) -> None:
        names = (f"device-{device}" for device in range(count))
        self._reports: dict[bytes, list[int]] = {}
        for i, name in enumerate(names):  # several may have the same tag
            self._reports.setdefault(receipt_tag(campaign, 0, name), []).append(i)
        self.seen: Times = np.full(count, np.nan)
        self.missing = count

    def read(self, payload: bytes, now: float) -> None:
        """A page arrived."""
        page = decode_receipts(payload)
        for tag in page.tags if isinstance(page, ReceiptPage) else ():
            for i in self._reports.pop(tag, ()):
                self.seen[i] = now
                self.missing -= 1


def main(url: str, count: int, directory: Path, connections: int, receipts: int) -> None:
    """Publish a report of each device; print when that began, and how long receipts took."""
    campaign = Manifest.from_bytes((directory / "manifest").read_bytes())
    ca_file = directory / "ca.crt" if parse_broker(url).tls else None
    sent: Times = np.zeros(count)
    told = Receipts(campaign, receipts)
    listener = threading.Thread(target=_listen, args=(url, campaign, told, ca_file), daemon=True)
    if receipts:
        listener.start()
    messages = list(reports(campaign, count))
    shares = [
        _noting(messages, share.tolist(), sent)
        for share in np.array_split(np.arange(count), connections)
    ]
    began, began_cpu = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(partial(publish, url, ca_file=ca_file), shares))
    cpu = (time.process_time() - began_cpu) / count * 1e6
    if receipts:
        listener.join(LONGEST_SECONDS)
    took = told.seen - sent[:receipts]
    p50, p99 = np.nanpercentile(took, [50, 99]).tolist() if receipts else (0.0, 0.0)
    facts = {"began_at": began, "cpu_microseconds": cpu, "p50": p50, "p99": p99}
    print(json.dumps({**facts, "unseen": told.missing}))


def _noting(messages: list[Message], share: list[int], sent: Times) -> Iterator[Message]:
    for i in share:
        sent[i] = time.monotonic()
        yield messages[i]


def _listen(url: str, campaign: Manifest, told: Receipts, ca_file: Path | None) -> None:
    trusted = Credentials(ca_file=str(ca_file) if ca_file else None)
    link = PahoLink(parse_broker(url), trusted, client_id="listener", persistent=False)
    link.connect()
    link.subscribe([f"{Topics(campaign.campaign).receipt_root}#"], qos=0)
    while told.missing and link.lost is None:
        for message in link.step(0.5):
            told.read(message.payload, time.monotonic())
    link.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    except TestbedError as error:
        sys.exit(str(error))
