"""Campaigns for tests."""

from __future__ import annotations

import re
import time
from functools import lru_cache

from protocol_spec import Manifest

_LIST = re.compile(r"""^values = \[.*?("[^"\n]*"|'[^'\n]*')\]$(?!\notherwise)""", re.M)
_LAST = r"\g<0>\notherwise = \1"


def manifest_text(
    *,
    first: int | None = None,
    period: int = 3600,
    count: int = 1000,
    grace: int = 3600,
    eps_inf: float = 2.0,
    eps_1: float = 0.6,
    min_reports: int = 1,
    max_values: int = 1,
    slug: str = "test",
    reporting: str = "memoized",
    each: int = 1,
    attributes: str = '[[attributes]]\nname = "fuel"\nquestion = "What heats your home?"\n'
    'values = ["wood", "gas", "oil", "pump"]\n',
    not_known: bool = False,
    cross: tuple[str, ...] = (),
) -> str:
    """A manifest whose first round began now, unless said otherwise.

    The last of named values stands for everything else, unless there is one more for what is
    `not_known`.
    """
    start = int(time.time()) - 5 if first is None else first
    once = reporting == "once"
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
min_reports = {min_reports}
{f"cross = {[*cross]}" if cross else ""}
{f"max_values = {max_values}" if reporting == "memoized" else ""}
[rounds]
first = {start}
period = {period}
count = {count}
grace = {grace}
{f"each = {each}" if once else ""}
{attributes if not_known else _LIST.sub(_LAST, attributes)}"""


@lru_cache(maxsize=200)
def read_manifest(text: str) -> Manifest:
    """The manifest of a text. It is frozen, so that all tests that ask for the same share it, and
    what it calculates once."""
    return Manifest.from_toml(text)


def second_manifest(**options: object) -> Manifest:
    """The same, with one more value for what is none of them."""
    return read_manifest(manifest_text(**options, not_known=True))  # type: ignore[arg-type]


def manifest(**options: object) -> Manifest:
    return read_manifest(manifest_text(**options))  # type: ignore[arg-type]
