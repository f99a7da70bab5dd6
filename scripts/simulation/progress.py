"""How far a simulation is: a bar where somebody looks, a line now and then where not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY: Final = 10.0  # seconds between two lines


@contextmanager
def shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with what has been done since; on standard error only."""
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.advance(task, done)
    else:
        yield _lines(what, total)


def _lines(what: str, total: int) -> Callable[[int], None]:
    done, next_line = 0, time.monotonic() + EVERY

    def advance(more: int) -> None:
        nonlocal done, next_line
        done += more
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + EVERY
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    return advance
