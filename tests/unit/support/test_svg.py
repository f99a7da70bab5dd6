"""Pictures that look the same are the same, and no others."""

from __future__ import annotations

import pytest

from tests.support.svg import TOLERANCE, differences

PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 50">
<defs><path id="m3f" d="M 0 3 L 1.5 2"/></defs>
<g clip-path="url(#p77)"><path d="M 10.25 20 L 58.990865 262.848918" style="stroke: #d55e00"/></g>
<use href="#m3f" x="12.5" y="-7.25"/><text transform="rotate(-90 10.5 366.4)">n = 500</text>
<clipPath id="p77"><rect x="1" y="2" width="30" height="40"/></clipPath>
</svg>"""


def test_a_picture_is_itself() -> None:
    assert differences(PICTURE, PICTURE) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("262.848918", "262.848917"),  # a last digit
        ("-7.25", f"{-7.25 + 0.9 * TOLERANCE}"),
        ("m3f", "m40"),  # a name made from a shape
        ("p77", "m3f0"),
    ],
)
def test_what_cannot_be_seen_is_no_difference(old: str, new: str) -> None:
    assert differences(PICTURE, PICTURE.replace(old, new)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("262.848918", f"{262.848918 + 1.1 * TOLERANCE}"),
        ("-7.25", "7.25"),
        ("rotate(-90", "rotate(-80"),
        ("L 1.5 2", "L 1.5 2 L 3 4"),
        ("L 1.5 2", "C 1.5 2"),
        ("n = 500", "n = 501"),
        ("#d55e00", "#d55e01"),
        ('href="#m3f"', 'href="#p77"'),
        ('<use href="#m3f" x="12.5" y="-7.25"/>', ""),
        ("<rect", "<circle"),
        (' style="stroke: #d55e00"', ""),
    ],
)
def test_what_can_be_seen_is_a_difference(old: str, new: str) -> None:
    assert old in PICTURE
    assert differences(PICTURE, PICTURE.replace(old, new)) != []
    assert differences(PICTURE.replace(old, new), PICTURE) != []
