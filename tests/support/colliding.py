"""Two campaigns with one name: other questions, and digests that agree in their first 32 bits.

They were found within a second by writing other numbers into `contact`, some 200,000 of them.
Their rounds of a year are open for decades.
"""

from __future__ import annotations

from typing import Final

from protocol_spec import Manifest

FIRST_ROUND: Final = 1_700_000_000
_TEXT: Final = """
format = 1
slug = "twins"
title = "{title}"
purpose = "Testing"
owner = "The tests"
contact = "{contact:08d}@example.org"
eps_inf = 1.0
eps_1 = 0.3
min_reports = 1
[rounds]
first = 1700000000
period = "52w"
count = 100
grace = "52w"
"""
_QUESTION: Final = """[[attributes]]
name = "{name}"
question = "Which?"
values = ["one", "two", "three"]
"""


def _text(title: str, contact: int, *names: str) -> str:
    questions = "".join(_QUESTION.format(name=name) for name in names)
    return _TEXT.format(title=title, contact=contact) + questions


TEXT_A: Final = _text("First", 282214, "a", "b", "c")
TEXT_B: Final = _text("Second", 5977, "d")
A: Final = Manifest.from_toml(TEXT_A)
B: Final = Manifest.from_toml(TEXT_B)
