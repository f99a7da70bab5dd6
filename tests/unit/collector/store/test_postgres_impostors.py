"""What is no PostgreSQL server that can be used, though something answers."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from collector.errors import StorageFailure
from collector.settings import StoreAddress
from collector.store.postgres import PostgresStore


class Impostor:
    """Something that answers a connection with bytes, and keeps what it was sent."""

    def __init__(self, *answers: bytes) -> None:
        self.heard = b""
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        connection, _ = self._listener.accept()
        with connection, suppress(OSError):
            for answer in self._answers:
                self.heard += connection.recv(1 << 16)
                connection.sendall(answer)
            while piece := connection.recv(1 << 16):
                self.heard += piece

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)


def test_no_password_goes_to_a_server_without_tls(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("open-sesame")
    file.chmod(0o600)
    with closing(Impostor(b"N")) as plain:  # "no TLS here", which anybody on the way could say
        url = f"postgresql://me@127.0.0.1:{plain.port}/x?sslmode=verify-full&sslrootcert=system"
        with pytest.raises(StorageFailure) as caught:
            PostgresStore(StoreAddress(url, file))
    assert "there is no TLS connection that can be trusted" in str(caught.value)
    assert plain.heard == struct.pack(">ii", 8, 80877103), "only the question for TLS"


def said(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", 4 + len(body)) + body


def test_a_server_that_is_too_old() -> None:
    """Only its greeting is made up: nobody packages such a server any more."""
    greeting = said(b"R", bytes(4)) + said(b"S", b"server_version\0" + b"13.22\0")
    old = Impostor(greeting + said(b"Z", b"I"))
    with closing(old), pytest.raises(StorageFailure) as caught:
        PostgresStore(StoreAddress(f"postgresql://me@127.0.0.1:{old.port}/x?sslmode=disable"))
    assert "is PostgreSQL 13.22; version 14 or newer is needed. Nothing was changed" in str(
        caught.value
    )
    assert b"CREATE" not in old.heard
