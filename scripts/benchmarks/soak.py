"""Whether a collector stays as it is: a constant rate of reports over TLS, with its page open.

`allomfree-collector run` counts reports that come at a constant rate through NATS with TLS, round
after round, while one reader holds the page's event stream open and others refresh the page. Memory
and open files of both processes, and the sizes of database and write-ahead log, are sampled. After
the first half, in which caches fill, none may grow: see growth.py for the rule.
"""

from __future__ import annotations

import http.client
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.campaign import manifest
from benchmarks.growth import growth
from benchmarks.measurements import Measurement
from benchmarks.page_readers import get, refreshing
from benchmarks.soak_figure import draw
from collector.data_dir import open_store
from protocol_spec import Manifest, Outcome, Report, Topics, digest8
from testbed.brokers import Broker, Message, Nats, publish, with_tls
from testbed.collector import CollectorProcess
from testbed.processes import Timing, free_port

PICTURE: Final = Path(__file__).parents[2] / "docs" / "pictures" / "soak.svg"
READERS: Final = 2
VALUES: Final = 16
SAMPLES: Final = 600
MIB: Final = 1 << 20
TIMING: Final = Timing(poll_seconds=0.1, ready_seconds=120.0, stop_seconds=60.0)
LIMITS: Final = {  # in an hour: less would not matter within a month
    "memory of the collector": (8.0, "MiB/h"),
    "memory of the page": (8.0, "MiB/h"),
    "open files of the collector": (1.0, "/h"),
    "open files of the page": (1.0, "/h"),
    "write-ahead log": (8.0, "MiB/h"),
    "database": (8.0, "MiB/h"),
}


class Soak(NamedTuple):
    """How long, at how many reports a second, in rounds of how many seconds."""

    seconds: float
    per_second: int
    round_seconds: int = 20


@dataclass(slots=True)
class Course:
    """What was sampled, and what became of the reports."""

    seconds: list[float] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in LIMITS})
    sent: int = 0
    accepted: int = 0
    events: int = 0
    pages: int = 0
    failures: int = 0
    rounds: int = 0


def measure(
    soak: Soak, picture: Path | None = None, run: Callable[[Soak], Course] | None = None
) -> list[Measurement]:
    """A run, judged; with a picture, drawn into that file."""
    course = (run or run_through)(soak)
    if picture is not None:
        draw(course.seconds, course.series, picture)
    note = f"{soak.seconds / 60:g} minutes at {soak.per_second} reports a second"
    return [
        Measurement("reports sent and not counted", course.sent - course.accepted, limit=0),
        Measurement("reports counted", course.accepted, note=note),
        Measurement("rounds sealed", course.rounds, at_least=1),
        *(_judged(name, course) for name in LIMITS),
        Measurement("events that the open page was told", course.events, at_least=1),
        Measurement("pages read", course.pages),
        Measurement("pages that failed", course.failures, limit=0),
    ]


def _judged(name: str, course: Course) -> Measurement:
    limit, unit = LIMITS[name]
    values, slope = course.series[name], growth(course.seconds, course.series[name])
    note = f"growth that is certain; estimate {slope.middle:.3g}, largest seen {max(values):.4g}"
    return Measurement(f"{name}: growth", max(0.0, slope.low), unit, limit, note)


def run_through(soak: Soak) -> Course:
    """Real processes, from start to end."""
    course = Course()
    with tempfile.TemporaryDirectory(prefix="allomfree-soak-") as scratch, ExitStack() as stack:
        data, port = Path(scratch) / "data", free_port()
        broker = stack.enter_context(with_tls(Nats)(Path(scratch) / "broker"))
        asked = _opened(data, soak)
        collector = stack.enter_context(_collector(data, broker, port))
        seen = stack.enter_context(refreshing(port, asked, READERS))
        told = stack.enter_context(_event_stream(port))
        with _sending(broker, asked, soak, course):
            _sample(collector, soak, course)
        _settle(collector, course)
        course.events, course.pages = told[0], len(seen.page_seconds)
        course.failures = seen.failures
        with collector.store() as store:
            course.rounds = 1 + (store.last_sealed(store.campaigns()[0].id) or -1)
    return course


def _opened(data: Path, soak: Soak) -> Manifest:
    rounds = 10 + int(soak.seconds / soak.round_seconds)
    asked = manifest(
        VALUES,
        begun_seconds=0,
        period_seconds=soak.round_seconds,
        rounds=rounds,
        grace_seconds=soak.round_seconds,
    )
    with closing(open_store(data)) as store:
        store.open_campaign(asked, int(time.time()))
    return asked


@contextmanager
def _collector(data: Path, broker: Broker, port: int) -> Iterator[CollectorProcess]:
    flags = ("--listen", f"127.0.0.1:{port}", "--ca-file", str(broker.ca_file))
    with CollectorProcess(data, *flags, broker=broker.url, timing=TIMING) as collector:
        collector.wait_until_connected()
        collector.wait_for("the collector's page", lambda: get(port, "/") is not None)
        yield collector


@contextmanager
def _event_stream(port: int) -> Iterator[list[int]]:
    """A browser that has the page open: it hears of every change. Yields how many it heard of."""
    told, connection = [0], http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)

    def listen() -> None:
        with suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            for line in answer:
                told[0] += line.startswith(b"event:")

    connection.request("GET", "/events", headers={"Accept": "text/event-stream"})
    answer = connection.getresponse()
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        connection.close()


@contextmanager
def _sending(broker: Broker, asked: Manifest, soak: Soak, course: Course) -> Iterator[None]:
    """Devices report in the background, until the time is over. What breaks there breaks here."""
    with ThreadPoolExecutor(1) as sender:
        sent = sender.submit(publish, broker.url, paced(asked, soak), ca_file=broker.ca_file)
        yield
        course.sent = sent.result()


def paced(asked: Manifest, soak: Soak) -> Iterator[Message]:
    """In every round one report from each device that there is time for."""
    topics, body = Topics(asked.campaign), bytes(asked.body_formats[0].length)
    began, number, device = time.monotonic(), -1, 0
    for count in range(int(soak.seconds * soak.per_second)):
        time.sleep(max(0.0, began + count / soak.per_second - time.monotonic()))
        now = int((time.time() - asked.rounds.first) // asked.rounds.period)
        number, device = (number, device + 1) if now == number else (now, 0)
        yield topics.report(f"device-{device}"), Report(digest8(asked), number, 0, body).encode()


def _sample(collector: CollectorProcess, soak: Soak, course: Course) -> None:
    began, every = time.monotonic(), max(0.2, soak.seconds / SAMPLES)
    while (passed := time.monotonic() - began) < soak.seconds:
        collector.check_running()
        course.seconds.append(passed)
        for name, value in zip(LIMITS, _look(collector)):
            course.series[name].append(value)
        time.sleep(every)


def _look(collector: CollectorProcess) -> tuple[float, ...]:
    pid, data = collector.pid, collector.data / "collector.db"
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    page = int(children[0])
    log = data.with_name("collector.db-wal")
    return (
        *(_resident_mib(process) for process in (pid, page)),
        *(float(len(list(Path(f"/proc/{p}/fd").iterdir()))) for p in (pid, page)),
        log.stat().st_size / MIB if log.exists() else 0.0,
        data.stat().st_size / MIB,
    )


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _settle(collector: CollectorProcess, course: Course) -> None:
    """Until everything sent is counted, or will not be."""

    def counted() -> bool:
        course.accepted = store.outcomes().get(Outcome.ACCEPTED, 0)
        return store.received() >= course.sent

    with collector.store() as store:
        collector.wait_for("all reports", counted)
