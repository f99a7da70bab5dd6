"""P1: silence is no answer. What is sent, said and asked for does not depend on the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge_client.records import Queued
from tests.support.edge import (
    FUEL,
    ROOM,
    WARMTH,
    FakeClock,
    broken,
    daily,
    draw_rounds,
    joined_agent,
    ledger_of,
    memos_of,
    only,
)

Reading = Callable[[str], object]


def exploding(_attribute: str) -> object:
    raise ZeroDivisionError


USELESS: tuple[Reading, ...] = (broken, exploding, lambda _: "nonsense", lambda _: None)


@pytest.mark.parametrize("read", USELESS)
@pytest.mark.parametrize("attribute", [FUEL, ROOM, WARMTH])
def test_a_useless_value_is_reported_from_the_last_memo(
    state: Path, clock: FakeClock, attribute: str, read: Reading
) -> None:
    """The attack of the issue: with edges 20, 21, 22, who was silent was out of that range."""
    agent = joined_agent(state, clock, daily(attributes=attribute))
    value = "wood" if attribute == FUEL else 21.5
    (first,) = draw_rounds(agent, clock, 1, value)
    before = memos_of(agent)
    drawn = agent.draw(only(agent), read)
    assert isinstance(drawn, Queued)
    assert len(drawn.payload) == len(first)
    (key,) = before
    assert memos_of(agent)[key].body == before[key].body
    assert memos_of(agent)[key].reports == 2
    assert ledger_of(agent) == [2.0]
    agent.store.close()
