"""A broker is there when it listens at all of its ports, and gone when it does not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stage.brokers import Nats
from stage.processes import StageError
from stage.programs import free_port


class Late(Nats):
    """Never listens at one of its ports."""

    start_seconds = 0.5
    missing = property(lambda _: free_port())
    ports = property(lambda self: [self.port, self.missing])


def test_workers_and_devices_can_connect_at_once(tmp_path: Path) -> None:
    with Nats(tmp_path) as nats:
        for port in (nats.port, nats.stream_port):
            socket.create_connection(("127.0.0.1", port)).close()
        assert nats.ports == [nats.port, nats.stream_port]


def test_a_broker_that_does_not_listen_is_ended(tmp_path: Path) -> None:
    late = Late(tmp_path)
    with pytest.raises(StageError, match="did not start"):
        late.start()
    assert late.process is None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", late.port)) != 0
