"""The page of a running collector: a process of its own that ends with it and comes back."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from collector.health import examine
from collector.records import Campaign
from collector.settings import PAGE, Address, resolve
from collector.web import child
from collector.web.child import PageProcess
from collector.web.server import NICE
from tests.support.collector_processes.processes import CollectorProcess
from tests.support.edge_processes.processes import wait_until
from tests.support.site import Site

NOBODY = ("--broker", "mqtt://127.0.0.1:1")
SERVES = "page, health and metrics on http://127.0.0.1:"

pytestmark = pytest.mark.slow


@pytest.fixture
def fresh(data: Path) -> Path:
    """Data of a collector that has not counted anything."""
    data.mkdir(mode=0o700)
    return data


@pytest.fixture
def running(fresh: Path) -> Iterator[CollectorProcess]:
    with CollectorProcess(fresh, *NOBODY, "--listen", "127.0.0.1:0") as process:
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


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_collector_serves_its_page(running: CollectorProcess, fresh: Path) -> None:
    site = site_of(running)
    assert site.get("/").status == 200
    wait_until(lambda: examine(fresh).running)
    reply = site.get("/health")
    assert reply.status == 503
    assert "the broker mqtt://127.0.0.1:1 cannot be used" in reply.text


def test_memory_and_standing_are_the_services_not_the_pages(
    running: CollectorProcess, fresh: Path
) -> None:
    site = site_of(running)
    wait_until(lambda: examine(fresh).running)
    record = examine(fresh).facts()
    assert record["pid"] == running.pid
    text = site.get("/metrics").text
    assert re.search(r"^allomfree_resident_memory_bytes [1-9]", text, re.MULTILINE)
    assert "allomfree_connected 0.0" in text


def test_the_page_gives_way_to_ingest(running: CollectorProcess) -> None:
    site_of(running).get("/")
    assert os.getpriority(os.PRIO_PROCESS, child_of(running)) == NICE
    assert os.getpriority(os.PRIO_PROCESS, running.pid) == 0


def test_a_page_that_was_killed_comes_back_at_its_address(running: CollectorProcess) -> None:
    site = site_of(running)
    assert site.get("/").status == 200
    first = child_of(running)
    os.kill(first, signal.SIGKILL)
    running.wait_for("the page ended (code -9); restarting")
    assert site.get("/").status == 200
    assert child_of(running) != first
    assert running.is_running


def test_a_page_that_could_not_be_started_is_tried_again(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = iter([["/no/such/program"], ["/no/such/program"], ["sleep", "60"]])
    monkeypatch.setattr(PageProcess, "_command", lambda _: next(commands))
    monkeypatch.setattr(child, "FIRST_PAUSE", 0.0)
    settings = resolve({"data_dir": fresh}, config=Path("/dev/null"), environ={})
    with PageProcess(settings, Address("127.0.0.1", 0)) as page:
        assert page.pid is None
        page.supervise()
        assert page.pid is None
        page.supervise()
        assert page.pid is not None
        assert is_there(page.pid)


def test_a_collector_that_was_killed_takes_its_page_along(running: CollectorProcess) -> None:
    site_of(running).get("/")
    child = child_of(running)
    os.kill(running.pid, signal.SIGKILL)
    wait_until(lambda: not is_there(child))


def test_a_collector_that_stops_ends_its_page_with_readers_attached(
    running: CollectorProcess,
) -> None:
    connection = site_of(running).connect()
    connection.request("GET", "/events")
    assert connection.getresponse().readline() == b"retry: 3000\n"
    child = child_of(running)
    assert running.terminate() == 0
    assert not is_there(child)
    connection.close()


def test_it_collects_without_a_page_if_nobody_named_the_port_and_it_is_taken(
    fresh: Path,
) -> None:
    with ExitStack() as stack:
        with suppress(OSError):  # then somebody else has it, which serves as well
            stack.enter_context(socket.create_server(PAGE))
        process = CollectorProcess(fresh, *NOBODY)
        process.command = [word for word in process.command if word not in ("--listen", "off")]
        with process:
            process.wait_for(f"{PAGE} cannot be listened on: Address already in use")
            process.wait_for("collecting without a page")
            wait_until(lambda: examine(fresh).running)
            assert process.is_running


def test_the_page_by_itself_says_where_it_is(data: Path, campaign: Campaign) -> None:
    process = CollectorProcess(data)
    process.command[3:] = ["page", "--data-dir", str(data), "--listen", "127.0.0.1:0"]
    with process:
        process.wait_for("page on http://127.0.0.1:")
        found = re.search(r":(\d+)/", process.lines[0]["message"])
        assert found
        assert campaign.name in Site(int(found[1])).get("/").text
        assert process.terminate() == 0
