"""Randomness that a test controls: a tape that says exactly what is drawn, or a seeded stream."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from itertools import count

BLOCK = 4096  # bytes


class TapeEnded(Exception):
    """More bytes were asked for than the test foresaw."""


class Tape:
    """Gives out prepared bytes in order and remembers the sizes asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.asked: list[int] = []

    def __call__(self, size: int) -> bytes:
        if size > len(self._data):
            raise TapeEnded
        self.asked.append(size)
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    @property
    def left(self) -> int:
        return len(self._data)


def words(*draws: int) -> bytes:
    """64-bit draws as a device reads them."""
    return struct.pack(f">{len(draws)}Q", *draws)


def seeded(seed: str) -> Callable[[int], bytes]:
    """A stream of bytes that is the same in every run. It is made in blocks: devices ask for eight
    bytes at a time, and a hash for each would take longer than what is tested."""
    blocks = count()
    block, at = b"", 0

    def draw(size: int) -> bytes:
        nonlocal block, at
        if at + size > len(block):
            length = max(BLOCK, size)
            block, at = hashlib.shake_128(f"{seed}/{next(blocks)}".encode()).digest(length), 0
        at += size
        return block[at - size : at]

    return draw
