"""Never more unanswered reports than the window allows, also right after a reconnect."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.link import WINDOW
from protocol_spec import Rejected, decode_report
from tests.support.edge import tick_until
from tests.support.edge_processes.loops import many_queued, queued
from tests.support.network import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    SUBSCRIBE,
    Peer,
    Wire,
    frame,
)

PENDING = 500


class Stingy:
    """Withholds PUBACKs until the client has nothing left to say but a ping; counts meanwhile."""

    def __init__(self, receive_maximum: int | None) -> None:
        self.receive_maximum = receive_maximum
        self.most: list[int] = []
        self.rounds: set[int] = set()

    def __call__(self, wire: Wire) -> None:
        if not wire.expect_connect():
            return
        wire.connack(receive_maximum=self.receive_maximum)
        self.most.append(0)
        unanswered: list[int] = []
        while (packet := wire.read()) is not None and packet.kind != DISCONNECT:
            if packet.kind == SUBSCRIBE:
                wire.suback(packet)
            elif packet.kind == PUBLISH:
                published = wire.published(packet)
                unanswered.append(published.mid)
                self.note(published.payload, len(unanswered))
            elif packet.kind == PINGREQ:
                wire.send(frame(PINGRESP))
                if len(self.most) == 1:
                    return  # at the first ping of the first connection
                while len(unanswered) > 1:  # it had every chance to send more, and did not
                    wire.puback(unanswered.pop(0))

    def note(self, payload: bytes, unanswered: int) -> None:
        report = decode_report(payload)
        assert not isinstance(report, Rejected)
        self.rounds.add(report.round)
        self.most[-1] = max(self.most[-1], unanswered)


@pytest.mark.slow
@pytest.mark.parametrize("receive_maximum", [None, 7], ids=["own window", "the broker's"])
def test_with_500_rows_pending(receive_maximum: int | None, tmp_path: Path) -> None:
    window = receive_maximum or WINDOW
    stingy = Stingy(receive_maximum)
    with (
        Peer(stingy) as peer,
        many_queued(tmp_path / "state", PENDING, peer.url, keepalive=1) as (carrier, *_),
    ):
        tick_until(carrier, lambda: len(stingy.rounds) > 3 * window - 3)
        assert len(queued(carrier)) == PENDING
    assert stingy.most == [window, window], "before the reconnect and after it"
