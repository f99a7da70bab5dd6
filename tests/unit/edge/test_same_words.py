"""P1: log, heartbeat and service manager are told the same, whatever the value and its source."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.agent import ReadValue
from edge_client.statement import status_facts
from protocol_spec import Manifest, Reporting
from protocol_spec.programs.memory_broker import MemoryBroker
from tests.support.edge import (
    ALL_WAYS,
    DAY,
    FUELS,
    ROOM,
    ROOMY,
    WARMTH,
    FakeClock,
    MemoryTally,
    broken,
    joined_agent,
    runner_of,
    way_manifest,
)

ROUNDS = 3


def exploding(_attribute: str) -> object:
    raise ZeroDivisionError


def alternating() -> ReadValue:
    """In the domain, out of it, and gone, in turn."""
    turns: Iterator[object] = iter(("wood", 21.5, "marmalade", 99.0) * ROUNDS)
    return lambda _attribute: next(turns)


SOURCES: dict[str, ReadValue] = {
    "first": lambda _: "wood",
    "last": lambda _: "other",
    "in a bin": lambda _: 21.5,
    "in another": lambda _: 20.5,
    "outside": lambda _: 99.0,
    "nonsense": lambda _: object(),
    "failing": broken,
    "raising": exploding,
}


def told(place: Path, asked: Manifest, read: ReadValue, caplog: pytest.LogCaptureFixture) -> object:
    """All that a daemon says over some rounds: records, beats, messages' sizes, and its status."""
    caplog.clear()
    clock, broker = FakeClock(), MemoryBroker()
    tally = MemoryTally(broker, asked)
    agent = joined_agent(place, clock, asked, device="device", broker="mqtt://localhost:1")
    runner = runner_of(agent, read, make_link=broker.link)
    beats: list[str] = []
    for _ in range(ROUNDS):
        for _turn in range(6):
            runner.tick(wait=0.0)
            beats.append((place / "heartbeat").read_text())
        clock.pass_time(DAY)
    runner.close()
    agent.store.close()
    with EdgeClient(place, clock=clock, policy=ROOMY, exclusive=False) as client:
        status = status_facts(client)
    sizes = [(device, len(payload)) for device, payload in tally.deliveries]
    records = [(r.levelname, r.getMessage(), getattr(r, "state", "")) for r in caplog.records]
    return records, beats, sizes, status


@pytest.mark.parametrize("reporting", ALL_WAYS)
@pytest.mark.parametrize("attribute", [FUELS, ROOM, WARMTH])
def test_from_the_first_round_on(
    tmp_path: Path, reporting: Reporting, attribute: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of a source that never worked."""
    caplog.set_level(logging.DEBUG)
    asked = way_manifest(reporting, attributes=attribute, count=ROUNDS, each=ROUNDS, max_values=2)
    sources = {**SOURCES, "alternating": alternating()}
    found = {n: told(tmp_path / n, asked, read, caplog) for n, read in sources.items()}
    expected = found["first"]
    for name, said in found.items():
        assert said == expected, name
