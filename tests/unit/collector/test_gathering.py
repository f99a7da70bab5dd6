"""Waiting a moment for more messages: while it brings some, and not for long where it does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from queue import Queue

from collector.links.mqtt import ENOUGH, LONGEST_REST, PAUSE_SECONDS, PAUSES, Gathering, PahoLink
from protocol_spec.programs.settings import Credentials, parse_broker
from tests.support.network import Peer, Wire


@dataclass
class Line:
    """A connection on which so many messages arrive during each pause."""

    during_pauses: Iterator[int]
    arrived: list[int] = field(default_factory=list)
    paused: list[float] = field(default_factory=list)
    gathering: Gathering = field(init=False)

    def __post_init__(self) -> None:
        self.gathering = Gathering(self.paused.append)

    def batch(self, first: int) -> int:
        """How many are handed over, if so many were there at first."""
        self.arrived = [0] * first
        self.gathering.gather(self.arrived, lambda: self.arrived.extend(self._more()))
        return len(self.arrived)

    def _more(self) -> Iterable[int]:
        return [0] * next(self.during_pauses)


def test_messages_that_come_one_by_one_are_gathered() -> None:
    line = Line(repeat(3))
    assert [line.batch(1) for _ in range(10)] == [1 + 3 * PAUSES] * 10
    assert line.paused == [PAUSE_SECONDS] * PAUSES * 10


def test_nothing_is_waited_for_when_nothing_came_or_enough_did() -> None:
    line = Line(repeat(3))
    assert [line.batch(0), line.batch(ENOUGH), line.batch(4_000)] == [0, ENOUGH, 4_000]
    assert not line.paused


def test_it_ends_when_there_are_enough() -> None:
    line = Line(repeat(ENOUGH))
    assert line.batch(1) == 1 + ENOUGH
    assert line.paused == [PAUSE_SECONDS]


def test_waiting_in_vain_becomes_rare() -> None:
    """A broker that waits for us is not made to wait at every batch."""
    line = Line(repeat(0))
    batches = 10 * LONGEST_REST
    assert {line.batch(20) for _ in range(batches)} == {20}
    assert len(line.paused) < 20


def test_it_is_tried_again_and_goes_on_when_it_brings_something() -> None:
    line = Line(iter([0] + [5] * 1_000))
    assert line.batch(1) == 1  # in vain
    assert line.batch(1) == 1  # not tried
    assert [line.batch(1) for _ in range(5)] == [1 + 5 * PAUSES] * 5


def test_a_link_hands_over_what_came_while_it_paused() -> None:
    wires: Queue[Wire] = Queue()

    def broker(wire: Wire) -> None:
        if wire.expect_connect():
            wire.connack()
            wires.put(wire)
            while wire.read() is not None:
                pass

    with Peer(broker) as peer:
        link = PahoLink(
            parse_broker(peer.url), Credentials(), client_id="test",
            sleep=lambda _: wire.publish("some/topic", b"later"),
        )  # fmt: skip
        link.connect()
        wire = wires.get(timeout=10)
        wire.publish("some/topic", b"first")
        payloads = [message.payload for message in link.step(10.0)]
        link.close()
    assert payloads == [b"first"] + [b"later"] * PAUSES
