"""The page of a running collector: a separate process that ends with it and is restarted."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from collector.health import examine, findings
from collector.settings import PAGE
from collector.web.live import LIMITS
from collector.web.server import NICE
from tests.support.collector_processes import CollectorProcess
from tests.support.pages import Site
from tests.support.processes import wait_until

NOBODY = ("--broker", "mqtt://127.0.0.1:1")
SERVES = "page, health and metrics on http://127.0.0.1:"

HALF = b"GET /planner HTTP/1.1\r\nHost: localhost\r\nX-Slow: "

pytestmark = pytest.mark.slow


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """Data of a collector that has not counted anything."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    return data


def started(data: Path) -> CollectorProcess:
    """A collector with a page and without a broker."""
    return CollectorProcess(data, *NOBODY, "--listen", "127.0.0.1:0")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CollectorProcess]:
    """One for the tests that leave it as it is."""
    data = tmp_path_factory.mktemp("shared") / "data"
    data.mkdir(mode=0o700)
    with started(data) as process:
        process.wait_for(SERVES)
        yield process


@pytest.fixture
def running(fresh: Path) -> Iterator[CollectorProcess]:
    """One of its own, for a test that ends it."""
    with started(fresh) as process:
        process.wait_for(SERVES)
        yield process


def site_of(process: CollectorProcess) -> Site:
    (line,) = [x["message"] for x in process.lines if SERVES in x["message"]]
    found = re.search(r":(\d+)/", line)
    assert found
    return Site(int(found[1]))


def child_of(process: CollectorProcess) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    (pid,) = children.read_text().split()
    return int(pid)


def test_the_page_inherits_no_secret(fresh: Path) -> None:
    """P6: what gets through the page's process must not be the broker's password, nor a way to
    speak for the service; and of the collector's open files it has the listening socket only."""
    secrets = {
        "ALLOMFREE_PASSWORD": "the broker's",
        "CREDENTIALS_DIRECTORY": "/run/credentials/allomfree",
        "NOTIFY_SOCKET": "@nobody-listens",
        "SOMEBODY_ELSES_KEY": "secret",
    }
    flags = (*NOBODY, "--listen", "127.0.0.1:0")
    with CollectorProcess(fresh, *flags, extra_environment=secrets) as process:
        process.wait_for(SERVES)
        assert site_of(process).get("/").status == 200
        child = Path("/proc") / str(child_of(process))
        inherited = {
            entry.partition(b"=")[0].decode()
            for entry in (child / "environ").read_bytes().split(b"\0")
        }
        assert not inherited & secrets.keys()
        opened = set()
        for entry in (child / "fd").iterdir():
            with suppress(FileNotFoundError):  # it goes on opening and closing files
                opened.add(str(entry.readlink()))
        assert opened
        assert not [name for name in opened if name.endswith((".lock", "/lock", "device.key"))]


def test_a_collector_serves_its_page_and_its_own_metrics_at_a_lower_priority(
    running: CollectorProcess, fresh: Path
) -> None:
    site = site_of(running)
    assert site.get("/").status == 200
    wait_until(lambda: "cannot be used" in examine(fresh).finding)
    beat = examine(fresh).beat
    assert beat is not None
    assert beat.pid == running.pid
    reply = site.get("/health")
    assert reply.status == 503
    assert "the broker mqtt://127.0.0.1:1 cannot be used" in reply.text
    text = site.get("/metrics").text
    assert re.search(r"^allomfree_resident_memory_bytes [1-9]", text, re.MULTILINE)
    assert "allomfree_connected 0.0" in text
    assert os.getpriority(os.PRIO_PROCESS, child_of(running)) == NICE
    assert os.getpriority(os.PRIO_PROCESS, running.pid) == 0


@pytest.mark.parametrize(
    "sent", [b"", HALF, HALF + b"x\r\n\r\n"], ids=["silent", "half", "answered"]
)
def test_connections_that_are_only_held_lock_nobody_out(
    shared: CollectorProcess, sent: bytes
) -> None:
    """A9: 300 from the owner's own address, which the page cannot tell apart. While requests that
    are whole are being answered, another may be told to try again."""
    site, pages = site_of(shared), ("/", "/planner", "/index.json")
    whole, limit = sent.endswith(b"\r\n\r\n"), LIMITS.request_seconds
    assert [site.get(page).status for page in pages] == [200] * 3, "loaded before it is timed"
    with ExitStack() as stack:
        began = time.monotonic()
        for _ in range(300):
            sock = socket.create_connection(("127.0.0.1", site.port), 30)
            stack.enter_context(sock).sendall(sent)
        reply = site.get("/")
        while whole and reply.status == 503 and time.monotonic() < began + limit:
            reply = site.get("/")
        assert reply.status == 200
        assert time.monotonic() < began + limit, "it waited until the first of them was ended"
        assert [site.get(page).status for page in pages] == [200] * 3


def test_open_event_streams_lock_nobody_out(shared: CollectorProcess) -> None:
    """A9: the owner's stream takes the place of the oldest."""
    site = site_of(shared)
    with ExitStack() as stack:
        for _ in range(2 * LIMITS.readers):
            connection = stack.enter_context(closing(site.connect()))
            connection.request("GET", "/events")
            assert connection.getresponse().readline() == b"retry: 3000\n"
        assert site.get("/").status == 200
        assert site.status("/events") == 200


def test_a_page_that_was_killed_comes_back_at_its_address(shared: CollectorProcess) -> None:
    site = site_of(shared)
    assert site.get("/").status == 200
    first = child_of(shared)
    os.kill(first, signal.SIGKILL)
    shared.wait_for("the page ended (code -9); restarting")
    assert site.get("/").status == 200
    assert child_of(shared) != first
    assert shared.is_running


def test_a_collector_that_was_killed_takes_its_page_along(running: CollectorProcess) -> None:
    site_of(running).get("/")
    child = child_of(running)
    os.kill(running.pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_a_collector_that_stops_ends_its_page_with_readers_attached(
    running: CollectorProcess,
) -> None:
    connection = site_of(running).connect()
    connection.request("GET", "/events")
    assert connection.getresponse().readline() == b"retry: 3000\n"
    child = child_of(running)
    assert running.terminate() == 0
    assert not Path(f"/proc/{child}").exists()
    connection.close()


def test_the_next_free_port_if_nobody_named_one_and_it_is_taken(fresh: Path) -> None:
    """It is said in the log, and by `health` and `status` for as long as it is so."""
    with ExitStack() as stack:
        with suppress(OSError):  # then somebody else has it, which serves as well
            stack.enter_context(socket.create_server(PAGE))
        process = CollectorProcess(fresh, *NOBODY)
        process.command = [word for word in process.command if word not in ("--listen", "off")]
        with process:
            process.wait_for(f"port {PAGE.port} cannot be used; the page is at http://127.0.0.1:")
            wait_until(lambda: examine(fresh).running)
            beat = examine(fresh).beat
            assert beat is not None
            port = int(beat.status.page.strip("/").rpartition(":")[2])
            socket.create_connection(("127.0.0.1", port)).close()
            health = findings(fresh, examine(fresh))
            assert [each.text for each in health if each.what == "page"] == [beat.status.page]
