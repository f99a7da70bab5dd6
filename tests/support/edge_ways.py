"""Campaigns of format 2, one for each way of reporting, for the agent's tests."""

from __future__ import annotations

import time
from typing import Final

from protocol_spec import Manifest, Reporting
from protocol_spec.ways import WAYS
from tests.support.edge_fakes import DAY, FIRST

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
format = 2
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
    return Manifest.from_toml(way_text(reporting, **options))  # type: ignore[arg-type]
