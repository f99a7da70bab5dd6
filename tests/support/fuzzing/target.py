"""One thing that reads bytes of others, and what may come of any bytes at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

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
