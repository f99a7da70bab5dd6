"""The loop: replay what is known, then change it again and again, and keep what does something new.

Where atheris can be installed, `tests/fuzz/run.py` lets it choose the inputs by the lines they
reach. This loop needs nothing but Python, and goes by what came of an input.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from tests.support.fuzzing.mutate import mutated
from tests.support.fuzzing.target import Target
from tests.support.places import ROOT

CORPUS: Final = ROOT / "tests" / "fuzz" / "corpus"
LARGEST_KEPT: Final = 512  # bytes of an input in the corpus
MOST_KEPT: Final = 40  # inputs of a target; a run that finds more changes those it has


class Broken(AssertionError):
    """An input for which something happened that must not; the message says how to repeat it."""


def corpus(target: Target, directory: Path = CORPUS) -> list[bytes]:
    """Inputs that did something new once, in a fixed order."""
    return [file.read_bytes() for file in sorted((directory / target.name).glob("*"))]


def keep(target: Target, data: bytes, directory: Path = CORPUS) -> Path:
    """Store an input under its own hash."""
    file = directory / target.name / hashlib.sha256(data).hexdigest()[:16]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


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
    directory: Path = CORPUS
    seen: set[str] = field(default_factory=set)
    pool: list[bytes] = field(default_factory=list)

    def replay(self) -> None:
        """Everything known."""
        for data in (*self.target.seeds, *corpus(self.target, self.directory), b""):
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
