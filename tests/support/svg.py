"""Two SVG pictures compared: the same elements, texts and styles; coordinates within a tolerance.

Another processor adds up or takes a logarithm with another last bit, which may turn over the last
digit that is written of a coordinate. So numbers that are places may differ by `TOLERANCE`, and
names that are made from places (matplotlib hashes a shape into its id) count by their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from xml.etree import ElementTree as ET

# In the picture's unit, a point of 1/72 inch: about a hundredth of a screen's pixel, too little to
# see. On the paper's logarithmic axes it is 0.03 % of a value; another seed moves a value by 1 %.
TOLERANCE = 0.01
PLACES = ("d", "points", "x", "y", "width", "height", "viewBox", "transform")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def differences(left: str, right: str) -> list[str]:
    """What is different, in words; empty for pictures that look the same."""
    ours, theirs = (ET.fromstring(_numbered_ids(text)) for text in (left, right))  # noqa: S314 - ours
    return [
        f"element {place}: {what}"
        for place, (a, b) in enumerate(zip_longest(ours.iter(), theirs.iter()))
        for what in _different(a, b)
    ]


def _different(a: ET.Element | None, b: ET.Element | None) -> Iterator[str]:
    if a is None or b is None or a.tag != b.tag:
        yield f"{a} is not {b}"
        return
    if (a.text or "").strip() != (b.text or "").strip():
        yield f"text {a.text!r} is not {b.text!r}"
    for name in sorted({*a.keys(), *b.keys()}):
        one, other = a.get(name), b.get(name)
        if one != other and not (name in PLACES and _close(one, other)):
            yield f"{name} {one!r} is not {other!r}"


def _close(one: str | None, other: str | None) -> bool:
    if one is None or other is None or NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE for a, b in pairs)


def _numbered_ids(text: str) -> str:
    """Every id named by its place in the file, and so what refers to it."""
    names = {name: f"id-{place}" for place, name in enumerate(re.findall(r'\bid="([^"]+)"', text))}
    return re.sub(
        r'(\bid="|#)([^")]+)', lambda found: found[1] + names.get(found[2], found[2]), text
    )
