"""Bulk devices send again as agents do: later each time, and all that wait on a new connection."""

from __future__ import annotations

import pytest

from edge_client.timing import Timing
from faults.bulk import Patience

DEVICES = range(50)
TIMING = Timing(resend=16.0, resend_longest=40.0, reconnect=2.0, reconnect_longest=6.0)


class Hand:
    """A clock that is set by hand."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def patience(clock: Hand) -> Patience:
    return Patience(TIMING, clock)


def test_everybody_is_due_at_first(patience: Patience) -> None:
    assert patience.due(0, DEVICES) == list(DEVICES)


@pytest.mark.parametrize(("before", "pause"), [(0, 16.0), (1, 32.0), (2, 40.0)])
def test_the_pause_doubles_up_to_its_longest(
    patience: Patience, clock: Hand, before: int, pause: float
) -> None:
    for _ in range(before + 1):
        patience.sent(0, DEVICES)
    clock.now += 0.49 * pause
    assert patience.due(0, DEVICES) == []
    clock.now += 0.26 * pause
    assert 0 < len(patience.due(0, DEVICES)) < len(DEVICES), "a fleet does not return as one"
    clock.now += 0.25 * pause
    assert patience.due(0, DEVICES) == list(DEVICES)
    assert patience.due(1, DEVICES) == list(DEVICES), "another round is another report"


def test_on_a_new_connection_all_is_sent_again(patience: Patience, clock: Hand) -> None:
    patience.sent(0, DEVICES)
    for longest in (2.0, 4.0, 6.0):
        patience.failed()
        clock.now += 0.49 * longest
        assert patience.due(0, DEVICES) == []
        clock.now += 0.51 * longest
        assert patience.due(0, DEVICES) == list(DEVICES)
    patience.sent(0, DEVICES)
    patience.failed()
    clock.now += 2.0
    assert patience.due(0, DEVICES), "one that held begins anew"
