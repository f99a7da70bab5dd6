"""Whether a collector stays as it is: a constant rate of reports over TLS, with its page open.

Memory and open files of collector and page, and the sizes of database and write-ahead log, are
sampled. The second half of the samples, after caches have filled, is cut into blocks, and each
block's greatest value counts: a log that fills and is emptied has the same peak again and again.
Growth is the slope of Theil and Sen, the median of the slopes of all pairs of blocks, with
Kendall's 95 % interval. A limit is broken when even the lower end of that interval is above it.
"""

from __future__ import annotations

import http.client
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.report import DOCS, Measurement
from benchmarks.workload import manifest, trusting
from collector.data_dir import open_store
from protocol_spec import Manifest, Outcome, Topics, make_report
from testbed.brokers import Message, Nats, publish, with_tls
from testbed.collector import CollectorProcess
from testbed.processes import child_pids, free_port, resident_bytes

PICTURE: Final = DOCS / "pictures" / "soak.svg"
VALUES: Final = 16
ROUND_SECONDS: Final = 20
SAMPLES: Final = 600
BLOCKS: Final = 20
NORMAL_975: Final = 1.959964
HOUR_SECONDS: Final = 3600.0
MIB: Final = 1 << 20
LIMITS: Final = {  # in an hour: less would not matter within a month
    "memory of the collector": (8.0, "MiB/h"),
    "memory of the page": (8.0, "MiB/h"),
    "open files of the collector": (1.0, "/h"),
    "open files of the page": (1.0, "/h"),
    "write-ahead log": (8.0, "MiB/h"),
    "database": (8.0, "MiB/h"),
}
PANELS: Final = (
    ("resident memory, MiB", "memory of the "),
    ("open files", "open files of the "),
    ("on disk, MiB", ""),
)
Series = Mapping[str, list[float]]


def measure(seconds: float, per_second: int, picture: Path | None = None) -> list[Measurement]:
    """Real processes, from start to end; with a picture, drawn into that file."""
    series: Series = {name: [] for name in ("seconds", *LIMITS)}
    with tempfile.TemporaryDirectory(prefix="allomfree-soak-") as scratch, ExitStack() as stack:
        data, port = Path(scratch) / "data", free_port()
        broker = stack.enter_context(with_tls(Nats)(Path(scratch) / "broker"))
        rounds = 10 + int(seconds / ROUND_SECONDS)
        schedule = {"period_seconds": ROUND_SECONDS, "grace_seconds": ROUND_SECONDS}
        asked = manifest(VALUES, rounds=rounds, **schedule)
        with closing(open_store(data)) as store:
            store.open_campaign(asked, int(time.time()))
        flags = ("--listen", f"127.0.0.1:{port}", *trusting(broker))
        process = CollectorProcess(data, *flags, broker=broker.url)
        process.stop_seconds = 60.0
        collector = stack.enter_context(process)
        collector.wait_until_connected()
        collector.wait_for("the collector's page", lambda: _get(port, "/") is not None)
        campaign = f"/campaigns/{asked.campaign}"
        pages = stack.enter_context(_repeated(lambda i: _get(port, ("/", campaign)[i % 2])))
        events = stack.enter_context(_event_stream(port))
        with ThreadPoolExecutor(1) as sender:
            messages = _paced(asked, int(seconds * per_second), per_second)
            sending = sender.submit(publish, broker.url, messages, ca_file=broker.ca_file)
            _sample(collector, seconds, series)
            sent = sending.result()
        with collector.store() as store:
            collector.wait_for("all reports", lambda: store.received() >= sent)
            accepted = store.outcomes().get(Outcome.ACCEPTED, 0)
            sealed = store.last_sealed(store.campaigns()[0].id)
    if picture is not None:
        _plot(series, picture)
    note = f"{seconds / 60:g} minutes at {per_second} reports a second"
    return [
        Measurement("reports sent and not counted", sent - accepted, limit=0),
        Measurement("reports counted", accepted, note=note),
        Measurement("rounds sealed", 0 if sealed is None else sealed + 1, at_least=1),
        *(_growth(name, series) for name in LIMITS),
        Measurement("events that the open page received", events[0], at_least=1),
        Measurement("pages read", len(pages)),
        Measurement(
            "pages that failed", sum(status != http.client.OK for status in pages), limit=0
        ),
    ]


def _growth(name: str, series: Series) -> Measurement:
    """Per hour: the lower end of the interval counts."""
    seconds, values = series["seconds"], series[name]
    first = len(seconds) // 2
    blocks = min(BLOCKS, len(seconds) - first)
    t = np.array([block[-1] for block in np.array_split(seconds[first:], blocks)])
    v = np.array([block.max() for block in np.array_split(values[first:], blocks)])
    i, j = np.triu_indices(len(t), 1)
    slopes = np.sort((v[j] - v[i]) / (t[j] - t[i])) * HOUR_SECONDS if len(i) else np.zeros(1)
    n = len(t)
    half = NORMAL_975 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = float(slopes[max(0, math.floor((len(slopes) - half) / 2) - 1)])
    limit, unit = LIMITS[name]
    seen = f"certain; estimate {np.median(slopes):.3g}, largest seen {max(values):.4g}"
    return Measurement(f"{name}: growth", max(0.0, low), unit, limit, seen)


def _get(port: int, path: str) -> int | None:
    """The status of one page after reading all of it, or None without an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
        except OSError:
            return None
        return answer.status


@contextmanager
def _repeated(work: Callable[[int], int | None]) -> Iterator[list[int | None]]:
    """Done twice a second until the context ends; yields what came out so far."""
    found: list[int | None] = []
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(0.5):
            found.append(work(len(found)))

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


@contextmanager
def _event_stream(port: int) -> Iterator[list[int]]:
    """A browser that has the page open. Yields the number of events so far, in a list of one."""
    events, connection = [0], http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)

    def listen() -> None:
        with suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            for line in answer:
                events[0] += line.startswith(b"event:")

    connection.request("GET", "/events", headers={"Accept": "text/event-stream"})
    answer = connection.getresponse()
    threading.Thread(target=listen, daemon=True).start()
    with closing(connection):
        yield events


def _paced(asked: Manifest, count: int, per_second: int) -> Iterator[Message]:
    """In every round one report from each device that there is time for."""
    topics, body = Topics(asked.campaign), bytes(asked.body_formats[0].length)
    began, number, device = time.monotonic(), -1, 0
    for sent in range(count):
        time.sleep(max(0.0, began + sent / per_second - time.monotonic()))
        now = int((time.time() - asked.rounds.first) // asked.rounds.period)
        number, device = (number, device + 1) if now == number else (now, 0)
        yield topics.report(f"device-{device}"), make_report(asked, number, 0, body).encode()


def _sample(collector: CollectorProcess, seconds: float, series: Series) -> None:
    began, every = time.monotonic(), max(0.2, seconds / SAMPLES)
    database = collector.data / "collector.db"
    log = database.with_name("collector.db-wal")
    while (passed := time.monotonic() - began) < seconds:
        collector.check_running()
        pids = (collector.pid, child_pids(collector.pid)[0])  # the second is the page
        values = (  # in the order of LIMITS
            *(resident_bytes(pid) / MIB for pid in pids),
            *(float(len(list(Path(f"/proc/{pid}/fd").iterdir()))) for pid in pids),
            log.stat().st_size / MIB if log.exists() else 0.0,
            database.stat().st_size / MIB,
        )
        for name, value in zip(series, (passed, *values)):
            series[name].append(value)
        time.sleep(every)


def _plot(series: Series, path: Path) -> None:
    """Memory, open files and sizes next to each other; what is judged is right of the line."""
    from paper.figures import drawing  # noqa: PLC0415 - half a second, only when drawing

    minutes, names = [second / 60 for second in series["seconds"]], list(LIMITS)
    with drawing(path, (11.0, 3.4), {"font.size": 9}) as figure:
        for place, axes in enumerate(figure.subplots(1, 3)):
            title, prefix = PANELS[place]
            for name, colour in zip(names[2 * place : 2 * place + 2], ("#0072B2", "#D55E00")):
                axes.plot(minutes, series[name], color=colour, label=name.removeprefix(prefix))
            axes.axvline(minutes[len(minutes) // 2], color="0.5", linewidth=0.8, linestyle=":")
            axes.set(xlabel="minutes", ylim=(0, None))
            axes.set_title(title, loc="left", fontsize="medium")
            axes.legend(frameon=False, fontsize=7, loc="lower right")
