"""The join link as a QR code, read back by a decoder that shares no code with the encoder."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from collector.terminal import AS_BEFORE, BORDER, DARK_ON_LIGHT, modules, svg_code, terminal_code
from tests.support.qr import read_code, squares_of

LINK = f"mqtts://broker.example:8883/allomfree/home-heat-{'0123456789abcdef' * 4}"
LONGEST = f"mqtts://{'b' * 63}.{'c' * 63}.example:65535/{'n' * 32}/{'s' * 32}-{'f' * 64}"


@pytest.mark.parametrize("link", [LINK, LONGEST, "mqtts://b/n/s-12345678"])
def test_a_decoder_reads_the_link(link: str) -> None:
    squares = modules(link)
    assert read_code(squares) == link
    quiet = [*squares[:BORDER], *squares[-BORDER:], *([row[:BORDER] for row in squares])]
    assert not any(any(row) for row in quiet), "the white around it"


def test_a_terminal_shows_black_on_white_whatever_its_colours() -> None:
    lines = terminal_code(LINK, colours=True).split("\n")
    assert all(line.startswith(DARK_ON_LIGHT) and line.endswith(AS_BEFORE) for line in lines)
    bare = [line.removeprefix(DARK_ON_LIGHT).removesuffix(AS_BEFORE) for line in lines]
    assert read_code(squares_of(bare)) == LINK
    assert max(map(len, bare)) <= 80, "it fits a terminal"
    assert len(bare) <= 40
    assert terminal_code(LINK, colours=False).split("\n") == bare


def test_a_page_shows_it_black_on_white() -> None:
    picture = ET.fromstring(svg_code(LINK, "a link"))  # noqa: S314 - our own
    ground, code = picture
    size = int(ground.get("width") or 0)
    assert (ground.get("fill"), code.get("fill")) == ("#fff", "#000")
    squares = [[0] * size for _ in range(size)]
    for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", code.get("d") or ""):
        squares[int(y)][int(x)] = 1
    assert read_code(squares) == LINK
    assert picture.get("role") == "img"
    assert picture.get("aria-label") == "a link"
    assert not {name for e in picture.iter() for name in e.attrib if name == "style"}
