"""P1 on real processes: an observer at the broker, and whoever reads what the agent prints.

The attack: with `edges = [20, 21, 22]` and eps_inf 0.02 an observer learned in 7 of 7 rounds
whether the room was at 20 to 22 °C, because a device outside of that range was silent.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from edge_client import EdgeClient
from edge_client.records import Timing
from protocol_spec import Manifest
from testbed.brokers import Broker, Tally
from tests.support.campaigns import manifest
from tests.support.edge import FIRST, ROOM, ROOMY, way_manifest
from tests.support.edge_processes.loops import RoundClock, fresh_manifest
from tests.support.edge_processes.processes import AgentProcess, edge, joined, wait_until
from tests.support.harness import ROOT

LITTLE = {"eps_inf": 0.02, "eps_1": 0.01, "period": 1, "grace": 60, "attributes": ROOM}


class Room:
    """A thermometer's file, which may hold nonsense or be gone."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def shows(self, reading: object) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"celsius": reading}))
        new.replace(self.file)

    def is_gone(self) -> None:
        self.file.unlink()


def reports_again(asked: Manifest, *tallies: Tally) -> None:
    """Until every observer has a report of a round that opened after this moment."""
    now = asked.rounds.round_at(time.time())
    assert now is not None
    for tally in tallies:
        wait_until(lambda: max((n for _, n in list(tally.payloads)), default=-1) > now)  # noqa: B023


@pytest.mark.slow
def test_an_observer_learns_nothing_from_silence(broker: Broker, tmp_path: Path) -> None:
    """In and out of the range, with a broken thermometer and with none: a report in each round."""
    old = fresh_manifest(**LITTLE)
    new = way_manifest("memoized", first=old.rounds.first, slug=f"{old.slug}-2", **LITTLE)
    room, state = Room(tmp_path / "room.json"), tmp_path / "state"
    config = joined(state, old, broker.url)
    with EdgeClient(state, policy=ROOMY) as client:
        client.join(client.invitation(manifest=new, broker=broker.url), device="device")
    config.write_text(
        f'state_dir = "{state}"\n[sources.room]\nkind = "json"\nfile = "{room.file}"\n'
        'field = "celsius"\n'
    )
    with (
        Tally(broker.port, old) as of_old,
        Tally(broker.port, new) as of_new,
        AgentProcess(config, timing=Timing(step=0.2, source_retry=0.5)) as agent,
    ):
        reports_again(new, of_new)  # the thermometer was never there
        assert of_old.payloads == {}, "accepted by name: no memo, no report"
        room.shows(21.5)
        reports_again(old, of_old, of_new)
        unusable = agent.said("usable value")
        room.shows(30.0)
        reports_again(old, of_old, of_new)
        room.is_gone()
        reports_again(old, of_old, of_new)
        assert agent.is_running
        assert agent.said("usable value") == unusable, "said only before the first memo"
    lengths = {len(payload) for _, payload in of_old.deliveries}
    assert len(lengths) == 1
    with EdgeClient(state) as client:
        assert [line.epsilon for line in client.store.ledger()] == [0.02, 0.02]


# --- what is printed -----------------------------------------------------------------------------

SOURCES = {
    "the first value": 'value = "oil"',
    "another": 'value = "gas"',
    "none of them": 'value = "marmalade"',
    "a program that fails": 'kind = "command"\ncommand = ["false"]',
}
ASKED = manifest(first=FIRST, period=86_400, max_values=3)
CLOCK = {
    "TEST_CLOCK": str(ASKED.rounds.opens(1) + 60),
    "PYTHONPATH": f"{ROOT / 'tests/support/clock'}:{ROOT}",
}
Printed = tuple[int, str, str]


def printed(place: Path, source: str) -> list[Printed]:
    """Exit codes and every byte in the second round, when the source is another."""
    state, config = place / "state", place / "edge.toml"
    shutil.rmtree(state, ignore_errors=True)
    with EdgeClient(state, policy=ROOMY, clock=RoundClock(ASKED)) as client:
        invitation = client.invitation(manifest=ASKED, broker="mqtt://127.0.0.1:1")
        client.join(invitation, device="device")
        client.agent.draw(client.find(), lambda _: "oil")
    config.write_text(f'state_dir = "{state}"\n[sources.fuel]\n{source}\n')
    told: list[Printed] = []
    for words in (("report", "--timeout", "0"), ("status", "--json")):
        flags = ("--config", config, "--log-level", "debug")
        done = edge(*words, *flags, extra_environment=CLOCK)
        told.append((done.returncode, done.stdout, done.stderr))
    return told


@pytest.mark.slow
def test_nothing_that_is_printed_depends_on_the_value(tmp_path: Path) -> None:
    """Byte for byte: logs at every level, status, JSON, exit codes. `show` is the owner's own."""
    found = {name: printed(tmp_path, source) for name, source in SOURCES.items()}
    expected = found.pop("the first value")
    assert "round 1: queued" in expected[0][1]
    assert [code for code, *_ in expected] == [1, 0], "no broker is there, and said so"
    for name, told in found.items():
        assert told == expected, name
