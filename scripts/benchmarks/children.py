"""Programs in processes of their own: `python -m benchmarks.children ROLE URL COUNT …`.

Each prints one line of JSON when COUNT reports are read or published; `bare` prints `attached`
first. The collector is not among them: `allomfree-collector run` itself is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.workload import reports
from protocol_spec import Manifest, ReceiptPage, Topics, decode_receipts, receipt_tag
from protocol_spec.programs.settings import parse_broker
from testbed.brokers import Message, publish
from testbed.processes import TestbedError, environment

SESSION: Final = "reader"
LONGEST_SECONDS: Final = 120.0


def paho_client(name: str, url: str, ca_file: Path | None, *, keep: bool) -> Any:
    """A paho client, not yet connected, and a function that connects it."""
    import paho.mqtt.client as mqtt  # noqa: PLC0415
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion  # noqa: PLC0415

    version, protocol = CallbackAPIVersion.VERSION2, MQTTProtocolVersion.MQTTv311
    client = mqtt.Client(version, name, clean_session=not keep, protocol=protocol)
    if ca_file is not None:
        client.tls_set(str(ca_file))
    broker = parse_broker(url)
    return client, lambda: client.connect(broker.host, broker.port, 600)


def bare(url: str, count: int) -> None:
    """A paho subscriber that only counts: what the collector is compared with."""
    seen, began, done = 0, 0.0, threading.Event()

    def on_message(*_: Any) -> None:
        nonlocal seen, began
        if not seen:
            began = time.perf_counter()
        seen += 1
        if seen == count:
            done.set()

    client, connect = paho_client(SESSION, url, None, keep=True)
    client.on_message = on_message
    client.on_connect = lambda *_: print("attached", flush=True)
    connect()
    client.loop_start()
    done.wait()
    rate = count / (time.perf_counter() - began)
    print(json.dumps({"per_second": rate, "done_at": time.monotonic()}), flush=True)


def publishers(url: str, count: int, manifest: str, connections: str, receipts: str) -> None:
    """Publish a report of each device over several connections, while one more listens to receipts
    as devices do; prints when that began, and how long receipts took."""
    import numpy as np  # noqa: PLC0415

    campaign = Manifest.from_bytes(Path(manifest).read_bytes())
    known = Path(manifest).with_name("broker") / "ca.crt"
    ca_file = known if parse_broker(url).tls else None
    sent, seen = np.zeros(count), np.full(int(receipts), np.nan)
    waiting: dict[bytes, list[int]] = {}
    for i in range(int(receipts)):  # several devices may have the same tag
        waiting.setdefault(receipt_tag(campaign, 0, f"device-{i}"), []).append(i)
    complete, ready = threading.Event(), threading.Event()

    def on_message(_client: Any, _data: Any, message: Any) -> None:
        page = decode_receipts(bytes(message.payload))
        for tag in page.tags if isinstance(page, ReceiptPage) else ():
            seen[waiting.pop(tag, [])] = time.monotonic()
        if not waiting:
            complete.set()

    def timed(share: list[int]) -> Iterator[Message]:
        for i in share:
            sent[i] = time.monotonic()
            yield messages[i]

    if waiting:
        client, connect = paho_client("listener", url, ca_file, keep=False)
        client.on_message, client.on_subscribe = on_message, lambda *_: ready.set()
        topic = f"{Topics(campaign.campaign).receipt_root}#"
        client.on_connect = lambda *_: client.subscribe(topic)
        connect()
        client.loop_start()
        ready.wait()
    messages = list(reports(campaign, count))
    shares = [timed(s.tolist()) for s in np.array_split(np.arange(count), int(connections))]
    began, began_cpu = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(len(shares)) as pool:
        list(pool.map(lambda share: publish(url, share, ca_file=ca_file), shares))
    facts = {"began_at": began, "publishing": (time.process_time() - began_cpu) / count * 1e6}
    if len(seen):
        complete.wait(LONGEST_SECONDS)
        p50, p99 = np.nanpercentile(seen - sent[: len(seen)], [50, 99]).tolist()
        facts |= {"p50": p50, "p99": p99, "unseen": int(np.isnan(seen).sum())}
    print(json.dumps(facts))


ROLES: Final[dict[str, Callable[..., None]]] = {"bare": bare, "publishers": publishers}


@contextmanager
def child(*words: object) -> Iterator[Callable[[], Any]]:
    """A process of a role; yields a function that waits for its next line."""
    command = [sys.executable, "-m", "benchmarks.children", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:

        def line() -> Any:
            text = process.stdout.readline() if process.stdout is not None else ""
            if not text:
                raise TestbedError("a process of the benchmark ended without an answer")
            return json.loads(text) if text.startswith("{") else text

        try:
            yield line
        except BaseException:
            process.kill()
            raise


if __name__ == "__main__":
    _, name, address, number, *more = sys.argv
    try:
        ROLES[name](address, int(number), *more)
    except TestbedError as error:
        sys.exit(str(error))
