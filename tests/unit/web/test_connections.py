"""A9: nobody gets anything for holding a connection, and whoever asks is answered."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from collector.records import Campaign
from collector.web.live import Limits, origin
from tests.support.site import Site, serving

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET /planner HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
PATIENT = 60.0  # seconds; a deadline of the server that never comes is what fails


@contextmanager
def sending(site: Site, data: bytes, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection(
        ("127.0.0.1", site.port), PATIENT, source_address=(host, 0)
    ) as sock:
        if data:
            sock.sendall(data)
        yield sock


def read_to_the_end(sock: socket.socket) -> bytes:
    """What comes until the server closes; a reset is an end too."""
    received = b""
    try:
        while data := sock.recv(65_536):
            received += data
    except ConnectionError:
        pass
    return received


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        sock.settimeout(PATIENT)


def is_cut_off(sock: socket.socket, data: bytes, pace_seconds: float) -> bool:
    """Whether the server ends a connection on which `data` is sent for ever."""
    limit = time.monotonic() + PATIENT
    try:
        while time.monotonic() < limit:
            sock.sendall(data)
            time.sleep(pace_seconds)  # the pace of the attack
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("data", [b"", HALF], ids=["silent", "half"])
def test_an_unfinished_request_has_a_deadline(data_dir: Path, data: bytes) -> None:
    with serving(data_dir, limits=Limits(request_seconds=0.2)) as site:
        with sending(site, data) as sock:
            assert read_to_the_end(sock) == b""
        assert site.get("/planner").status == 200


def test_single_bytes_do_not_put_it_off(data_dir: Path) -> None:
    """Neither in a first request nor after an answer on the same connection."""
    with serving(data_dir, limits=Limits(request_seconds=0.5)) as site:
        for first in (b"", WHOLE):
            with sending(site, first) as sock:
                assert is_cut_off(sock, b"G", pace_seconds=0.02)


def test_a_body_that_never_comes_holds_nothing(data_dir: Path) -> None:
    with serving(data_dir, limits=Limits(request_seconds=0.2)) as site, sending(site, BODY) as sock:
        assert read_to_the_end(sock).startswith(b"HTTP/1.1 503 ")  # unhealthy: nobody collects


def test_an_answer_that_nobody_reads_is_given_up(data_dir: Path) -> None:
    """Many requests at once, and the answers are left in the socket."""
    limits = Limits(reading_seconds=0.2)
    with serving(data_dir, limits=limits) as site, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENT)
        sock.connect(("127.0.0.1", site.port))
        many = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
        assert is_cut_off(sock, many, pace_seconds=0.0)
        assert site.get("/planner").status == 200


def test_a_deadline_does_not_end_what_is_being_answered(data: Path, campaign: Campaign) -> None:
    limits = Limits(request_seconds=0.1, reading_seconds=0.1, alive_seconds=0.3)
    with serving(data, limits=limits) as site:
        connection = site.connect()
        connection.request("GET", "/campaigns/nosuch/events")
        response = connection.getresponse()
        assert [response.readline() for _ in range(5)][4] == b": still here\n"
        connection.close()


@pytest.mark.parametrize("limits", [Limits(connections=8), Limits(connections_of_one=8)])
def test_who_has_waited_longest_gives_way(data_dir: Path, limits: Limits) -> None:
    with serving(data_dir, limits=limits) as site, ExitStack() as stack:
        held = [stack.enter_context(sending(site, HALF)) for _ in range(8)]
        assert site.get("/planner").status == 200
        assert read_to_the_end(held[0]) == b""
        assert all(is_open(sock) for sock in held[1:])


def test_the_address_that_holds_most_gives_way(data_dir: Path) -> None:
    """All of 127.0.0.0/8 is this machine: other addresses for a test."""
    with serving(data_dir, limits=Limits(connections=8)) as site, ExitStack() as stack:
        single = stack.enter_context(sending(site, HALF, "127.0.0.2"))
        crowd = [stack.enter_context(sending(site, HALF, "127.0.0.3")) for _ in range(20)]
        wait_for_end = [read_to_the_end(sock) for sock in crowd[:13]]
        assert wait_for_end == [b""] * 13
        assert is_open(single)
        assert all(is_open(sock) for sock in crowd[13:])


def test_if_all_are_being_answered_a_newcomer_is_told(data: Path, campaign: Campaign) -> None:
    with serving(data, limits=Limits(connections=3)) as site:
        readers = [site.connect() for _ in range(3)]
        for reader in readers:
            reader.request("GET", "/events")
            assert reader.getresponse().status == 200
        with sending(site, b"") as sock:
            answer = read_to_the_end(sock)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"try again in a few seconds" in answer
        for reader in readers:
            reader.close()


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, ""),
        ("elsewhere", "elsewhere"),
    ],
)
def test_whom_a_connection_is_counted_for(host: str | None, counted: str) -> None:
    assert origin(host) == counted


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """No database: these tests ask for the planner."""
    return tmp_path
