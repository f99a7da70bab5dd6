"""The network of the chaos command stalls, slows down, resets and goes half-open."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from faults.proxy import Passage, Proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says everything back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield int(listener.getsockname()[1])


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(client,), daemon=True).start()


def _answer(client: socket.socket) -> None:
    with client:
        try:
            while data := client.recv(1000):
                client.sendall(data)
        except OSError:
            return


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as made:
        yield made


def connected(proxy: Proxy) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", proxy.port), 30)
    made.sendall(b"hello")
    assert made.recv(5) == b"hello"
    return made


def silent_for(sock: socket.socket, seconds: float) -> bool:
    sock.settimeout(seconds)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(30)
    return False


def test_it_stalls_and_goes_on(proxy: Proxy) -> None:
    with closing(connected(proxy)) as sock:
        proxy.stall()
        sock.sendall(b"later")
        assert silent_for(sock, 0.3)
        proxy.flow()
        assert sock.recv(5) == b"later"


def test_it_slows_down(proxy: Proxy) -> None:
    with closing(connected(proxy)) as sock:
        proxy.bytes_a_second = 1_000
        begin = time.monotonic()
        sock.sendall(b"x" * 256)
        got = b""
        while len(got) < 256:
            got += sock.recv(256)
        assert time.monotonic() - begin >= 2 * 256 / 1_000 * 0.9, "there and back"


def test_it_resets(proxy: Proxy) -> None:
    with closing(connected(proxy)) as sock:
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_it_goes_half_open_for_good(proxy: Proxy) -> None:
    with closing(connected(proxy)) as sock:
        proxy.go_half_open()
        sock.sendall(b"lost")
        assert silent_for(sock, 0.3)
        connected(proxy).close()  # connections made later are served


class Late(socket.socket):
    """Ends when the other side of its passage does."""

    both: threading.Barrier

    def shutdown(self, how: int) -> None:
        self.both.wait()
        super().shutdown(how)


def pair(both: threading.Barrier) -> tuple[socket.socket, Late]:
    """Two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Late(fileno=socket.create_connection(listener.getsockname(), 30).detach())
        made.both = both
        return listener.accept()[0], made


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_sides_that_end_at_once_leave_no_socket_open(proxy: Proxy) -> None:
    for _ in range(100):
        both = threading.Barrier(2)
        (client, inner), (broker, outer) = pair(both), pair(both)
        passage = Passage(proxy, inner, outer)
        client.close()
        broker.close()
        passage.start()
        while passage.is_alive:
            time.sleep(0.0001)
        assert (inner.fileno(), outer.fileno()) == (-1, -1)
