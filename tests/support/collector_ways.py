"""Campaigns with every mechanism, and devices that answer them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from collector.links import Message
from protocol_spec import Manifest, Topics, Way, WayRandomiser, make_report
from protocol_spec.ways import WAYS
from tests.support.campaigns import read_manifest
from tests.support.collector_fakes import FIRST, HOUR

__all__ = ["NUMERIC", "WAYS", "Device", "asked"]

FUEL, POWER, TOWN = 0, 1, 2  # the attributes of `QUESTIONS`
NUMERIC: Final = POWER
BUDGETS: Final = {
    "memoized": "eps_inf = 4.0\neps_1 = 2.0",
    "once": "eps_inf = 4.0",
    "hashed": "eps_inf = 4.0\neps_1 = 2.0",
    "nested": "eps_inf = 4.0\neps_1 = 1.0",
}
QUESTIONS: Final = f"""
[[attributes]]
name = "fuel"
question = "What heats your home?"
values = ["wood", "gas", "oil", "pump"]
[[attributes]]
name = "power"
question = "How much power?"
edges = [0.0, 1.0, 2.0, 4.0, 8.0]
unit = "kW"
[[attributes]]
name = "town"
question = "Where do you live?"
values = [{", ".join(f'"t{i}"' for i in range(300))}]
"""


def asked(
    reporting: str,
    *,
    min_reports: int = 1,
    count: int = 8,
    each: int | None = None,
    attributes: str = QUESTIONS,
) -> Manifest:
    """Hourly rounds from FIRST."""
    text = f"""
format = 1
slug = "{reporting}"
title = "A test"
purpose = "Testing"
owner = "The tests"
contact = "tests@example.org"
reporting = "{reporting}"
{BUDGETS[reporting]}
min_reports = {min_reports}
[rounds]
first = {FIRST}
period = {HOUR}
count = {count}
grace = {HOUR}
{f"each = {each}" if each else ""}
{attributes}"""
    return read_manifest(text)


@dataclass
class Device:
    """A device that keeps its memos, as an agent does."""

    manifest: Manifest
    name: str
    attribute: int
    memos: dict[int, bytes] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    drawn: WayRandomiser | None = None  # one that devices share, or its own

    @property
    def way(self) -> Way:
        return self.manifest.ways[self.attribute]

    def answer(self, index: int) -> bytes:
        """The answer of one round; nothing is kept where the way keeps nothing."""
        drawn = self.drawn = self.drawn or self.way.randomiser(self.name)
        key = drawn.key(index)
        if key not in self.memos or not self.way.memos:
            self.memos[key], self.sent[key] = drawn.memoize(key), 0
        self.sent[key] += 1
        return drawn.report(self.memos[key], self.sent[key] - 1)

    def message(self, number: int, index: int) -> Message:
        """A report of the value with this index."""
        report = make_report(self.manifest, number, self.attribute, self.answer(index))
        return Message(Topics(self.manifest.campaign).report(self.name), report.encode())
