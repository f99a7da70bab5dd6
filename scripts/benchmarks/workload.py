"""What several benchmarks use: the campaign and its reports, brokers, limited processor time, and
readers of the analyst's page."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from collector.brokers.config import GO_RUNTIME, on_this_machine
from protocol_spec import Manifest, Topics, make_report
from testbed.brokers import Broker, Message, Mosquitto, Nats
from testbed.processes import cpu_seconds, make_manifest

TICK_SECONDS: Final = 0.005
REFRESH_SECONDS: Final = 1.0  # from one refresh of a page's reader to its next
ANSWER_SECONDS: Final = 30.0


def manifest(
    k: int,
    begun_seconds: int = 60,
    *,
    period_seconds: int = 86_400,
    rounds: int = 2,
    grace_seconds: int = 86_400,
    first: int | None = None,
    **settings: Any,
) -> Manifest:
    """A campaign about one attribute `a` with values `v0`, `v1`, …; it began a moment ago."""
    start = first or int(time.time()) - begun_seconds
    schedule = {"first": start, "period": period_seconds, "count": rounds, "grace": grace_seconds}
    values = [f"v{i}" for i in range(k)]
    return make_manifest({"a": values}, schedule, **{"receipt_pages": 1000, **settings})


def reports(campaign: Manifest, count: int, *, number: int = 0) -> Iterator[Message]:
    """One identical report of round `number` from each of `count` devices."""
    topics, body = Topics(campaign.campaign), bytes(campaign.body_formats[0].length)
    payload = make_report(campaign, number, 0, body).encode()
    return ((topics.report(f"device-{device}"), payload) for device in range(count))


class UnsyncedNats(Nats):
    """NATS that leaves syncing to the system: the broker's disk is not what is measured here."""

    sync = ""


class RoomyMosquitto(Mosquitto):
    """As `broker-config` writes it: long queues, and many messages in flight."""

    extra = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 2000\n"


class Embedded(Nats):
    """The broker with the configuration that the collector writes for its embedded one."""

    environment: ClassVar[Mapping[str, str]] = GO_RUNTIME

    @property
    def ports(self) -> list[int]:
        return [self.port]  # no workers pull from it

    def configuration(self) -> str:
        return on_this_machine(self.directory, "127.0.0.1", self.port)


@contextmanager
def prepared(kind: type[Broker], campaign: Manifest) -> Iterator[tuple[Broker, Path]]:
    """A broker, and a directory with what `children` need."""
    with tempfile.TemporaryDirectory() as scratch, kind(Path(scratch) / "broker") as broker:
        (Path(scratch) / "manifest").write_bytes(campaign.to_bytes())
        if broker.ca_file is not None:
            shutil.copy(broker.ca_file, Path(scratch) / "ca.crt")
        yield broker, Path(scratch)


def pid_of(broker: Broker) -> int:
    return broker.process.pid if broker.process is not None else 0


@contextmanager
def limited(pids: Sequence[int], share: float) -> Iterator[None]:
    """Give each process at most a share of a core, so that two cores can show what many would do.
    A process gets SIGSTOP when it has used its share of the elapsed time, and SIGCONT later."""
    done = threading.Event()

    def limit() -> None:
        begun = time.monotonic()
        before = [cpu_seconds(pid) for pid in pids]
        while not done.wait(TICK_SECONDS):
            allowed = share * (time.monotonic() - begun)
            for pid, early in zip(pids, before):
                over = cpu_seconds(pid) - early > allowed
                os.kill(pid, signal.SIGSTOP if over else signal.SIGCONT)

    thread = threading.Thread(target=limit)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def page_readers(port: int, asked: Manifest, readers: int) -> Iterator[list[float | None]]:
    """Threads that each refresh one of the campaign's pages once a second, until the context ends.
    They begin spread over a second, so that each finds the page changed. Yields the seconds that
    each page took; None is a request that failed."""
    taken: list[float | None] = []
    done = threading.Event()
    campaign = f"/campaigns/{asked.campaign}"
    attribute = f"{campaign}/attributes/{asked.attributes[0].name}"
    paths = ["/", campaign, attribute, f"{attribute}/rounds/latest", f"{campaign}.json"]

    def read(reader: int) -> None:
        done.wait(reader / readers * REFRESH_SECONDS)
        while not done.is_set():
            begin = time.perf_counter()
            status = get(port, paths[reader % len(paths)])
            seconds = time.perf_counter() - begin
            taken.append(seconds if status == http.client.OK else None)
            done.wait(max(0.0, REFRESH_SECONDS - seconds))

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield taken
    finally:
        done.set()
        for thread in threads:
            thread.join()


def get(port: int, path: str) -> int | None:
    """The status of one page after reading all of it, or None without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    with closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
        except OSError:
            return None
        return answer.status
