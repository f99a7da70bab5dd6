"""Programs in processes of their own: `python -m benchmarks.children ROLE URL COUNT DIRECTORY …`.

Each prints one line of JSON when COUNT reports are read or published; `bare` and `live` print
`attached` first. The directory holds the campaign's manifest and, for TLS, the broker's authority.
"""

from __future__ import annotations

import json
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.workload import reports
from collector.data_dir import DeviceKey, open_shared, open_store
from collector.ingest.batch import relax_garbage_collector
from collector.links import Links
from collector.links.mqtt import PahoConnector, PahoLink, Subscription
from collector.links.stream import StreamConnector
from collector.records import Campaign
from collector.rounds import sealing
from collector.service import Options, Service
from collector.settings import StoreAddress, parse_streams
from collector.store import Store
from protocol_spec import (
    DEFAULT_NAMESPACE,
    Manifest,
    ReceiptPage,
    Topics,
    decode_receipts,
    receipt_tag,
)
from protocol_spec.programs.settings import Credentials, parse_broker
from testbed.brokers import Message, publish
from testbed.processes import TestbedError, child_pids, cpu_seconds, peak_memory_mib

SESSION: Final = "reader"
LONGEST_SECONDS: Final = 120.0


def _manifest(directory: Path) -> Manifest:
    return Manifest.from_bytes((directory / "manifest").read_bytes())


def _credentials(url: str, directory: Path) -> Credentials:
    return Credentials(ca_file=str(directory / "ca.crt") if parse_broker(url).tls else None)


class _Stopwatch:
    """Wall and processor time since the first batch arrived."""

    def __init__(self, server: int = 0) -> None:
        self._server = server  # process id of a database server
        self._began: tuple[float, float, float] | None = None

    def trace(self, step: str) -> None:
        if step == "batch in memory" and self._began is None:
            self._began = self._now()

    def spent(self, count: int) -> dict[str, float]:
        wall, own, server = (b - a for a, b in zip(self._began or self._now(), self._now()))
        rates = {"per_second": count / wall, "cpu": own / count * 1e6}
        return {**rates, "server": server / count * 1e6} if self._server else rates

    def _now(self) -> tuple[float, float, float]:
        total = 0.0
        for pid in (self._server, *child_pids(self._server)) if self._server else ():
            with suppress(OSError):  # it has ended
                total += cpu_seconds(pid)
        return time.perf_counter(), time.process_time(), total


def _count(service: Service, watch: _Stopwatch, count: int) -> dict[str, float]:
    """Commit and acknowledge that many reports; what it took."""
    while service.status.accepted < count:
        service.turn(0.5)
    spent = watch.spent(count)
    service.shut_down()
    return {**spent, "batch": service.status.largest_batch, "memory": peak_memory_mib()}


def _print_with_seal(spent: dict[str, float], store: Store, campaign: Campaign) -> None:
    before = time.perf_counter()
    sealing.seal(store, campaign, 0, int(time.time()))
    print(json.dumps({**spent, "seal": time.perf_counter() - before}))


def _service(
    url: str, directory: Path, trace: Callable[[str], None]
) -> tuple[Service, Store, Campaign]:
    """The collector's service on a broker, for the campaign whose manifest is in the directory."""
    relax_garbage_collector()  # garbage is collected as rarely as `run` does
    directory.chmod(0o700)
    store = open_store(directory)
    campaign = store.open_campaign(_manifest(directory), int(time.time()))
    connect = PahoConnector(parse_broker(url), _credentials(url, directory), client_id=SESSION)
    links = Links(lambda will: Subscription(connect(will), DEFAULT_NAMESPACE))
    service = Service(store, DeviceKey(directory / "key"), links, Options(trace=trace))
    return service, store, campaign


def own(url: str, count: int, directory: Path) -> None:
    """Our collector on the reports of a waiting session; then seal the round."""
    watch = _Stopwatch()
    service, store, campaign = _service(url, directory, watch.trace)
    _print_with_seal(_count(service, watch, count), store, campaign)


def shared(url: str, count: int, directory: Path, stream: str, store_url: str, server: str) -> None:
    """A worker on reports that wait in NATS's stream, with a shared store; then seal the round."""
    watch = _Stopwatch(int(server))
    relax_garbage_collector()
    address = StoreAddress(store_url)
    with closing(open_shared(address)) as store:
        campaign = store.open_campaign(_manifest(directory), int(time.time()))
        source = StreamConnector(lambda: parse_streams(stream), Credentials(), DEFAULT_NAMESPACE)
        publisher = PahoConnector(parse_broker(url), Credentials(), client_id="leader")
        links = Links(lambda _: source(), publisher, drained_is_global=True)
        key = DeviceKey(directory / "key")
        spent = _count(
            Service(store, key, links, Options("worker", trace=watch.trace)), watch, count
        )
    with closing(open_shared(address)) as store:
        _print_with_seal(spent, store, campaign)


def live(url: str, count: int, directory: Path) -> None:
    """Our collector while reports are published, until standard input is closed."""
    service, _, _ = _service(url, directory, lambda _: None)
    while not service.status.connected:
        service.turn(0.1)
    for _ in range(5):
        service.turn(0.1)  # it announces the campaign
    print("attached", flush=True)
    began, done = time.process_time(), False
    while not select.select([sys.stdin], [], [], 0.0)[0]:
        service.turn(0.1)
        if service.status.accepted >= count and not done:
            done = True
            cpu = (time.process_time() - began) / count * 1e6
            again = service.status.received - service.status.accepted
            facts = {"done_at": time.monotonic(), "counting": cpu, "again": again}
            print(json.dumps(facts), flush=True)
    service.shut_down()


def bare(url: str, count: int, _directory: Path) -> None:
    """A paho subscriber that only counts: what the collector is compared with."""
    import paho.mqtt.client as mqtt  # noqa: PLC0415
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion  # noqa: PLC0415

    seen, began, done = 0, 0.0, threading.Event()

    def on_message(*_: Any) -> None:
        nonlocal seen, began
        if not seen:
            began = time.perf_counter()
        seen += 1
        if seen == count:
            done.set()

    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        SESSION,
        clean_session=False,
        protocol=MQTTProtocolVersion.MQTTv311,
    )
    client.on_message = on_message
    client.on_connect = lambda *_: print("attached", flush=True)
    broker = parse_broker(url)
    client.connect(broker.host, broker.port, 600)
    client.loop_start()
    done.wait()
    rate = count / (time.perf_counter() - began)
    print(json.dumps({"per_second": rate, "done_at": time.monotonic()}), flush=True)


def publishers(url: str, count: int, directory: Path, connections: str, receipts: str) -> None:
    """Publish a report of each device over several connections, while one more listens to receipts
    as devices do; prints when that began, and how long receipts took."""
    import numpy as np  # noqa: PLC0415

    campaign, credentials = _manifest(directory), _credentials(url, directory)
    sent = np.zeros(count)
    seen = np.full(int(receipts), np.nan)
    waiting: dict[bytes, list[int]] = {}
    for i in range(int(receipts)):  # several devices may have the same tag
        waiting.setdefault(receipt_tag(campaign, 0, f"device-{i}"), []).append(i)

    def listen() -> None:
        link = PahoLink(parse_broker(url), credentials, client_id="listener", persistent=False)
        link.connect()
        link.subscribe([f"{Topics(campaign.campaign).receipt_root}#"], qos=0)
        while waiting and link.lost is None:
            for message in link.step(0.5):
                page = decode_receipts(message.payload)
                for tag in page.tags if isinstance(page, ReceiptPage) else ():
                    seen[waiting.pop(tag, [])] = time.monotonic()
        link.close()

    def timed(share: list[int]) -> Iterator[Message]:
        for i in share:
            sent[i] = time.monotonic()
            yield messages[i]

    listener = threading.Thread(target=listen, daemon=True)
    if waiting:
        listener.start()
    messages = list(reports(campaign, count))
    ca_file = Path(credentials.ca_file) if credentials.ca_file else None
    shares = [timed(s.tolist()) for s in np.array_split(np.arange(count), int(connections))]
    began, began_cpu = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(len(shares)) as pool:
        list(pool.map(lambda share: publish(url, share, ca_file=ca_file), shares))
    facts = {"began_at": began, "publishing": (time.process_time() - began_cpu) / count * 1e6}
    if len(seen):
        listener.join(LONGEST_SECONDS)
        p50, p99 = np.nanpercentile(seen - sent[: len(seen)], [50, 99]).tolist()
        facts |= {"p50": p50, "p99": p99, "unseen": int(np.isnan(seen).sum())}
    print(json.dumps(facts))


ROLES: Final[dict[str, Callable[..., None]]] = {
    role.__name__: role for role in (own, shared, live, bare, publishers)
}

if __name__ == "__main__":
    _, name, address, number, place, *more = sys.argv
    try:
        ROLES[name](address, int(number), Path(place), *more)
    except TestbedError as error:
        sys.exit(str(error))
