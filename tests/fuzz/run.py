#!/usr/bin/env python3
"""Fuzz for as long as you like: see README.md in this directory."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # run from anywhere

from tests.support.fuzzing import (  # noqa: E402
    LARGEST_KEPT,
    MOST_KEPT,
    Session,
    Target,
    all_targets,
    corpus,
    keep,
    tried,
)


@click.command()
@click.option("--target", "names", multiple=True, help="Only this one; may be repeated.")
@click.option("--seconds", default=60.0, show_default=True, help="For each target.")
@click.option("--seed", type=int, help="Of the changes; by default another one each time.")
@click.option("--input", "data", help="Only this input, in hexadecimal.")
def main(names: tuple[str, ...], seconds: float, seed: int | None, data: str | None) -> None:
    """Look for inputs that break a decoder, parser or packet reader."""
    with TemporaryDirectory(prefix="allomfree-fuzz-") as place:
        known = all_targets(Path(place))
        for name in names or known:
            if data is not None:
                click.echo(tried(known[name], bytes.fromhex(data)))
            else:
                fuzz(known[name], seconds, random.Random(seed))


def fuzz(target: Target, seconds: float, dice: random.Random) -> None:
    """Run one target, and keep what did something new."""
    session, ends, tries, new = Session(target, dice), time.monotonic() + seconds, 0, []
    session.replay()
    for data in session.new():
        tries += 1
        if data is not None and len(data) <= LARGEST_KEPT:
            new.append(data)
        if time.monotonic() > ends:
            break
    new = new[: max(0, MOST_KEPT - len(corpus(target)))]
    keep(target, new)
    click.echo(f"{target.name}: {tries:,} inputs, {len(session.seen)} outcomes, {len(new)} kept")


if __name__ == "__main__":
    main()
