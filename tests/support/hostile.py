"""What attackers send: floods from a broker, deceiving text, campaigns whose names collide."""

from __future__ import annotations

import struct
import unicodedata
from functools import cache
from typing import Final

from protocol_spec import Manifest
from testbed.brokers import mqtt_text
from tests.support.network import (
    CONNACK,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    Script,
    Wire,
    frame,
)

MIB: Final = 1 << 20
ENDLESS: Final = b"\xff\xff\xff\x7f"  # 256 MiB, the longest that MQTT can say


ZEROS: Final = (bytes(MIB),) * 48


def accepted(wire: Wire) -> None:
    """Accept the connection, and wait until it subscribes to something."""
    wire.connack()
    while (packet := wire.read()) is not None and packet.kind != SUBSCRIBE:
        pass


def sends(*pieces: bytes) -> Script:
    """Accept the connection, and then send these."""

    def attack(wire: Wire) -> None:
        accepted(wire)
        for piece in pieces:
            wire.send(piece)

    return attack


def endless_connack(wire: Wire) -> None:
    for piece in (bytes([CONNACK << 4]) + ENDLESS, *ZEROS):
        wire.send(piece)


def connack_full_of_properties(wire: Wire) -> None:
    properties = (b"\x26" + mqtt_text("k") + mqtt_text("v")) * 30_000
    size = len(properties)
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    wire.send(frame(CONNACK, b"\0\0" + length + properties))


def repeated_connacks(wire: Wire) -> None:
    accepted(wire)
    for _ in range(1000):
        wire.connack()


def long_topics(wire: Wire) -> None:
    accepted(wire)
    for _ in range(100):
        wire.publish(b"a/" * 32_767, bytes(10))


def many_retained(wire: Wire) -> None:
    accepted(wire)
    tail = b"\0" if wire.version == 5 else b""
    for number in range(300):
        body = mqtt_text(f"allomfree/v1/pub/{number}") + tail + bytes(200_000)
        wire.send(frame(PUBLISH, body, flags=1))


ATTACKS: Final[tuple[Script, ...]] = (
    endless_connack,
    connack_full_of_properties,
    repeated_connacks,
    long_topics,
    many_retained,
    sends(frame(SUBACK, b"\0\1\0" + bytes(MIB))),
    sends(frame(SUBACK, b"\0\1\0" + bytes(65_535))),
    sends(bytes([PUBLISH << 4]) + ENDLESS, *ZEROS),  # an endless message
    sends(b"\x40" + ENDLESS, *ZEROS),  # an endless acknowledgement
    sends(*[frame(PINGRESP) * 20_000] * 8),
    sends(frame(PINGREQ) * 500_000),
    sends(bytes([PUBLISH << 4]) + b"\x80\x80\x40", *[b"\0"] * 300),  # byte by byte
    sends(frame(PUBLISH, mqtt_text("t") + struct.pack("!H", 7) + b"\0", flags=4) * 10_000),  # QoS 2
)


class Hostile:
    """Plays one attack after the other, each on a connection of its own, and then behaves."""

    def __init__(self, behave: Script) -> None:
        self.left = list(ATTACKS)
        self._behave = behave

    def __call__(self, wire: Wire) -> None:
        if not wire.expect_connect():
            return
        if self.left:
            self.left.pop(0)(wire)
            wire.hang_up()
        else:
            self._behave(wire)


# --- deceiving text, for every test of what reaches a terminal (A10) ------------------------------


ESCAPES: Final = (
    "\x1b]52;c;ZXZpbA==\x07",  # fills the clipboard
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1bP+q544e\x1b\\",  # asks the terminal, which types the answer
    "\x9b2J",  # the same as the second, in one character
    "ok\r\x08\x08\x7f",  # overwrites what was printed before
    "\u202eevil\u202c",  # right to left
    "\u2066a\u2069\u200f",
    "a\u200bb\u2060\ufeff",  # not seen at all
    "a\U000e0041\U000e007f",  # tags
    "a\u2028b\u0085c",  # other line ends
)
LONG: Final = "x" * 100_000
HOSTILE: Final = (*ESCAPES, LONG, "\x1b[2J" * 20_000)

# As the Unicode database has it, not as the product's list does: controls, formats, surrogates,
# line and paragraph separators.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def hidden_in(text: str) -> set[str]:
    """Characters that must not reach a terminal."""
    return {c for c in text if unicodedata.category(c) in _HIDDEN} - {"\n", "\t"}


@cache
def toml(text: str) -> str:
    """A TOML string or key that holds exactly this."""
    special = {c for c in text if c in '"\\' or (unicodedata.category(c) == "Cc")}
    return '"' + "".join(f"\\u{ord(c):04x}" if c in special else c for c in text) + '"'


# --- two campaigns with one name: digests that agree in their first 32 bits -----------------------


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
choose_for = "round"
min_reports = 1
[rounds]
first = 1700000000
period = "52w"
count = 100
grace = "52w"
"""


def _text(title: str, contact: int, names: str) -> str:
    table = '[[attributes]]\nname = "{}"\nquestion = "Which?"\nvalues = ["one", "two", "three"]\n'
    return _TEXT.format(title=title, contact=contact) + "".join(map(table.format, names))


TEXT_A: Final = _text("First", 282214, "abc")
TEXT_B: Final = _text("Second", 5977, "d")
A: Final = Manifest.from_toml(TEXT_A)
B: Final = Manifest.from_toml(TEXT_B)
