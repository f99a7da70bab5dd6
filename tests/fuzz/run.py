#!/usr/bin/env python3
"""Fuzz for as long as you like: see README.md beside this file."""

# ruff: noqa: PLC0415 - atheris must be there before what it watches is imported

from __future__ import annotations

import random
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tests.support.fuzzing.target import Target

ROOT = Path(__file__).resolve().parents[2]
WATCHED = ["protocol_spec", "edge_client", "collector"]


@click.command()
@click.option("--target", "names", multiple=True, help="Only this one; may be repeated.")
@click.option("--seconds", default=60.0, show_default=True, help="For each target.")
@click.option("--seed", type=int, help="Of the changes; by default another one each time.")
@click.option("--input", "data", help="Only this input, in hexadecimal.")
@click.option("--atheris", is_flag=True, help="Let atheris choose inputs, for one --target.")
def main(
    names: tuple[str, ...], seconds: float, seed: int | None, data: str | None, atheris: bool
) -> None:
    """Look for inputs that break a decoder, parser or packet reader."""
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    tool = _atheris() if atheris else None
    with TemporaryDirectory(prefix="allomfree-fuzz-") as place:
        known = _targets(tool, Path(place))
        for name in names or known:
            if data is not None:
                from tests.support.fuzzing.loop import tried

                click.echo(tried(known[name], bytes.fromhex(data)))
            elif tool is not None:
                by_coverage(tool, known[name], seconds)
            else:
                by_outcome(known[name], seconds, random.Random(seed))


def _atheris() -> Any:
    if find_spec("atheris") is None:
        raise click.ClickException("atheris is not installed; run: pip install atheris")
    return import_module("atheris")


def _targets(tool: Any, place: Path) -> dict[str, Target]:
    watching: AbstractContextManager[object] = nullcontext()
    if tool is not None:
        watching = tool.instrument_imports(include=WATCHED)
    with watching:
        from tests.support.fuzzing.targets import all_targets
    return all_targets(place)


def by_outcome(target: Target, seconds: float, dice: random.Random) -> None:
    """Without any tool; keeps what did something new."""
    from tests.support.fuzzing.loop import LARGEST_KEPT, MOST_KEPT, Session, corpus, keep

    session, ends, tries, kept = Session(target, dice), time.monotonic() + seconds, 0, 0
    session.replay()
    for data in session.new():
        tries += 1
        if data is not None and len(data) <= LARGEST_KEPT and len(corpus(target)) < MOST_KEPT:
            keep(target, data)
            kept += 1
        if time.monotonic() > ends:
            break
    click.echo(f"{target.name}: {tries:,} inputs, {len(session.seen)} outcomes, {kept} kept")


def by_coverage(tool: Any, target: Target, seconds: float) -> None:
    """With atheris, which looks at the lines that an input reaches. It ends the process."""
    from tests.support.fuzzing.loop import CORPUS, keep, tried

    def one(data: bytes) -> None:
        tried(target, data)

    for seed in target.seeds:
        keep(target, seed)
    words = [f"-max_total_time={int(seconds)}", "-max_len=4096"]
    tool.Setup([sys.argv[0], str(CORPUS / target.name), *words], one)
    tool.Fuzz()


if __name__ == "__main__":
    main()
