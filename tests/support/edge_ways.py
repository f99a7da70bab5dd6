"""Campaigns, one for each mechanism, and what the agent made of them."""

from __future__ import annotations

import time
from typing import Final

from edge_client.agent import Agent
from edge_client.errors import SourceFailure
from edge_client.records import Memo, Queued
from protocol_spec import Manifest, Rejected, Report, Reporting, decode_report
from protocol_spec.ways import WAYS
from tests.support.campaigns import read_manifest
from tests.support.edge_fakes import DAY, FIRST, FakeClock, only

ALL_WAYS: Final[tuple[Reporting, ...]] = WAYS
WITH_MEMOS: Final[tuple[Reporting, ...]] = ("memoized", "hashed", "nested")

FUELS: Final = """[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "other"]
otherwise = "other"
"""
WARMTH: Final = """[[attributes]]
name = "warmth"
question = "How warm is it?"
edges = [-inf, 10, 20, inf]
unit = "°C"
"""
ROOM: Final = """[[attributes]]
name = "room"
question = "How warm is the room?"
edges = [20, 21, 22]
unit = "°C"
"""


def many_values(k: int = 64) -> str:
    """So many named values: what is drawn again comes out different."""
    values = ", ".join(f'"v{i:02}"' for i in range(k))
    return (
        f'[[attributes]]\nname = "colour"\nquestion = "?"\nvalues = [{values}]\n'
        f'otherwise = "v{k - 1:02}"\n'
    )


def way_text(
    reporting: Reporting,
    *,
    attributes: str = FUELS,
    first: int | None = FIRST,
    period: int = DAY,
    count: int = 365,
    grace: int = DAY,
    each: int = 1,
    eps_inf: float = 2.0,
    eps_1: float = 0.6,
    max_values: int = 1,
    slug: str = "test",
) -> str:
    """A year of daily rounds, unless said otherwise; with `first` None, from now on."""
    once, start = reporting == "once", int(time.time()) - 1 if first is None else first
    return f"""
format = 1
slug = "{slug}"
title = "A test"
purpose = "Testing"
owner = "The tests"
contact = "tests@example.org"
reporting = "{reporting}"
eps_inf = {eps_inf}
{"" if once else f"eps_1 = {eps_1}"}
min_reports = 1
{f"max_values = {max_values}" if reporting == "memoized" else ""}
[rounds]
first = {start}
period = {period}
count = {count}
grace = {grace}
{f"each = {each}" if once else ""}
{attributes}"""


def way_manifest(reporting: Reporting, **options: object) -> Manifest:
    """The same, read."""
    return read_manifest(way_text(reporting, **options))  # type: ignore[arg-type]


def memos_of(agent: Agent) -> dict[int, Memo]:
    """Of the one campaign joined."""
    return agent.store.memos.of(only(agent).name)


def ledger_of(agent: Agent) -> list[float]:
    """Every charge."""
    return [line.epsilon for line in agent.store.ledger.lines()]


def report_of(row: Queued) -> Report:
    """A report that must decode."""
    report = decode_report(row.payload)
    assert not isinstance(report, Rejected)
    return report


def draw_all(agent: Agent, clock: FakeClock, value: object = "wood") -> list[Queued]:
    """Every report that leaves from now to the campaign's end."""
    found: list[Queued] = []
    while clock.now < only(agent).manifest.rounds.end:
        drawn = agent.draw(only(agent), lambda _: value)
        found += [drawn] if isinstance(drawn, Queued) else []
        clock.pass_time(DAY)
    return found


def broken(_attribute: str) -> object:
    """A source that fails."""
    raise SourceFailure("the sensor is gone; nothing was drawn or sent")
