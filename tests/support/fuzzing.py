"""Fuzzing without a tool: replay what is known, then change it again and again, and keep what does
something new. An input is new if what came of it, in words, was not seen before (S2)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from tests.support.places import ROOT

CORPUS: Final = ROOT / "tests" / "fuzz" / "corpus"  # a file for each target, a line for each input
LARGEST_KEPT: Final = 512  # bytes of an input in the corpus
MOST_KEPT: Final = 40  # inputs of a target; a run that finds more changes those it has
LETTERS: Final = re.compile(r"[^a-z ]+", re.IGNORECASE)  # what is left out of words about an input


@dataclass(frozen=True, slots=True)
class Target:
    """`run` takes any bytes and returns what came of them in a few words.

    It raises for what must never happen: an exception that nobody declared, or a broken promise,
    such as a message with two encodings. Words that were not seen before mean that the input did
    something new; the loop keeps such inputs and goes on from them.
    """

    name: str
    run: Callable[[bytes], str]
    seeds: list[bytes] = field(default_factory=list)
    words: list[bytes] = field(default_factory=list)  # that inputs of this kind are made of


class Broken(AssertionError):
    """An input for which something happened that must not; the message says how to repeat it."""


def corpus(target: Target) -> list[bytes]:
    """Inputs that did something new once, in a fixed order."""
    file = CORPUS / f"{target.name}.txt"
    lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
    return [line.encode().decode("unicode_escape").encode("latin-1") for line in lines]


def keep(target: Target, inputs: Sequence[bytes]) -> None:
    """Add inputs to the corpus."""
    kept = {*corpus(target), *inputs}
    lines = sorted(data.decode("latin-1").encode("unicode_escape").decode() for data in kept)
    (CORPUS / f"{target.name}.txt").write_text("\n".join([*lines, ""]), encoding="ascii")


def tried(target: Target, data: bytes) -> str:
    """What came of one input; `Broken` with the input if it must not be."""
    try:
        return target.run(data)
    except Exception as error:
        raise Broken(
            f"{target.name}: {type(error).__name__}: {error}\n"
            f"repeat with: python tests/fuzz/run.py --target {target.name} --input {data.hex()}"
        ) from error


@dataclass(slots=True)
class Session:
    """One run over one target."""

    target: Target
    dice: random.Random
    seen: set[str] = field(default_factory=set)
    pool: list[bytes] = field(default_factory=list)

    def replay(self) -> None:
        """Everything known."""
        for data in (*self.target.seeds, *corpus(self.target), b""):
            self.seen.add(tried(self.target, data))
            self.pool.append(data)

    def new(self) -> Iterator[bytes | None]:
        """Endlessly: an input that did something new, or None after one that did not."""
        for _ in count():
            data = mutated(self.pool, self.target.words, self.dice)
            outcome = tried(self.target, data)
            if outcome in self.seen:
                yield None
            else:
                self.seen.add(outcome)
                self.pool.append(data)
                yield data


# --- changed inputs ---------------------------------------------------------------------------

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
