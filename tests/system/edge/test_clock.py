"""F8 over real brokers: a collector's retained state puts a doubted clock's first draw off."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.agent import Wait
from edge_client.clock import SystemClock
from protocol_spec import Presence, State, digest8
from testbed.brokers import Broker, Tally
from tests.support.edge import QUICK, ROOMY, tick_until
from tests.support.edge_processes.loops import fresh_manifest

DAY = 86_400


class WrongClock(SystemClock):
    """Ahead by so many seconds, and no time server has answered."""

    ahead = 200.0 * DAY

    def wall(self) -> float:
        return super().wall() + self.ahead

    def synchronised(self) -> bool:
        return False


@pytest.mark.slow
def test_a_clock_half_a_year_ahead_at_its_first_draw(broker: Broker, tmp_path: Path) -> None:
    """It would be silent for half a year; a broker's word delays the draw, and never causes one."""
    asked, clock, points = fresh_manifest(period=DAY), WrongClock(), list[str]()
    state = State(digest8(asked), Presence.ONLINE, None)
    with (
        Tally(broker.port, asked) as tally,
        EdgeClient(
            tmp_path / "state",
            policy=ROOMY,
            clock=clock,
            entropy=bytes,  # draws at the first moment of a round
            timing=QUICK,
            trace=points.append,
        ) as client,
    ):
        tally.publish(tally.topics.state, state.encode(), retain=True)
        invitation = client.invitation(manifest=asked, broker=broker.url)
        client.join(invitation, device="device")
        heartbeat = tmp_path / "state" / "heartbeat"
        with closing(client.runner(lambda _: "wood")) as runner:
            runner.tick()
            tick_until(runner, lambda: Wait.CLOCK_DISPUTED in heartbeat.read_text())
            for sealed in (0, 3, None):
                words = State(digest8(asked), Presence.ONLINE, sealed)
                tally.publish(tally.topics.state, words.encode(), retain=True)
                runner.tick()
            assert "report drawn" not in points
            clock.ahead = 0.0
            tick_until(runner, lambda: bool(tally.payloads))
    assert list(tally.payloads) == [("device", 0)]
