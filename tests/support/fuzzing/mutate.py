"""Changed inputs: flipped, cut, repeated, joined; with the numbers that decoders trip over."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

LONGEST: Final = 4096
ODD: Final = (
    b"\0", b"\xff", b"\x7f", b"\x80", b"\xc0", b"\xc1", b"\xd9\xff", b"\xdb\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\0" * 7,
    b"\xcb\x7f\xf0" + b"\0" * 6, b"\xcb\x7f\xf8" + b"\0" * 6, b"\xcb\x80" + b"\0" * 7,
    b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x01", b"\xed\xa0\x80", b"\xe2\x80\xae", b"\x1b[2J",
    b"\xf3\xa0\x81\x81", b"9" * 30, b"1e999", b"nan", b"-0", b"[[", b"{", b'"', b"'''", b"\n", b"/",
    b"..", b"+", b"#", b"%00", b"@", b":",
)  # fmt: skip

Change = Callable[[bytes, random.Random], bytes]


def _flip(data: bytes, dice: random.Random) -> bytes:
    if not data:
        return dice.randbytes(dice.randrange(1, 9))
    place = dice.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << dice.randrange(8)]) + data[place + 1 :]


def _set(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data) + 1)
    return data[:place] + dice.randbytes(1) + data[place + 1 :]


def _cut(data: bytes, dice: random.Random) -> bytes:
    start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + data[end:]


def _end(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[start:end] * dice.choice((1, 2, 40)) + data[end:]


def _insert(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data) + 1)
    return data[:place] + dice.choice(ODD) + data[place:]


CHANGES: Final[tuple[Change, ...]] = (_flip, _set, _cut, _end, _repeat, _insert)


def mutated(pool: Sequence[bytes], words: Sequence[bytes], dice: random.Random) -> bytes:
    """One of the pool after one to four changes, perhaps joined with another of it."""
    data = dice.choice(pool)
    for _ in range(dice.choice((1, 1, 2, 4))):
        chance = dice.random()
        if chance < 0.1:
            other = dice.choice(pool)
            data = data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]
        elif chance < 0.25 and words:
            place = dice.randrange(len(data) + 1)
            data = data[:place] + dice.choice(words) + data[place + dice.randrange(3) :]
        else:
            data = dice.choice(CHANGES)(data, dice)
    return data[:LONGEST]
