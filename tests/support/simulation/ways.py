"""Campaigns of each way of reporting, small enough to look at every report."""

from __future__ import annotations

from protocol_spec import Manifest
from protocol_spec.ways import Reporting
from tests.support.simulation.campaigns import FIRST, FUEL

BUDGETS = {"memoized": "eps_1 = 0.6", "once": "", "hashed": "eps_1 = 0.6", "nested": "eps_1 = 0.6"}


def questions(k: int, protocol: str = "auto") -> str:
    """One question with k values and none besides."""
    values = ", ".join(f'"v{i}"' for i in range(k))
    asked = f'[[attributes]]\nname = "value"\nquestion = "?"\nvalues = [{values}]\n'
    return f'{asked}otherwise = "v{k - 1}"\nprotocol = "{protocol}"\n'


def campaign(
    reporting: Reporting,
    *,
    attributes: str = FUEL,
    eps_inf: float = 2.0,
    count: int = 20,
    each: int = 1,
    min_reports: int = 1,
    max_values: int = 1,
) -> Manifest:
    answers = f"each = {each}" if reporting == "once" else ""
    memos = f"max_values = {max_values}" if reporting == "memoized" else ""
    return Manifest.from_toml(f"""
format = 1
slug = "ways"
title = "Ways"
purpose = "Testing"
owner = "The tests"
contact = "tests@example.org"
reporting = "{reporting}"
eps_inf = {eps_inf}
{BUDGETS[reporting]}
min_reports = {min_reports}
{memos}
[rounds]
first = {FIRST}
period = 86400
count = {count}
{answers}
{attributes}""")
