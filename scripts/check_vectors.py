"""Compare the code with files of reference values, entry by entry.

A file is a JSON object. Each list in it holds entries of one kind, named by its key; texts next to
them are remarks. Exits with 1 where a number differs by more than 1e-12, relative to the reference
(absolute where that is 0), where an entry cannot be read, and for an unknown kind or field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from protocol_spec.programs.cli import install_command

LARGEST: Final = 1e-12


class Unreadable(Exception):
    """A file, or an entry, is not what it should be; the text says where and what to do."""


@dataclass
class Verdict:
    """What became of the entries of one kind in one file."""

    kind: str
    entries: int = 0
    numbers: int = 0
    largest: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.entries > 0 and not self.faults

    def line(self) -> str:
        if not self.entries:
            return f"  {self.kind:<28} not checked"
        return (
            f"  {self.kind:<28} {self.entries:>5} entries {self.numbers:>7} numbers   "
            f"largest relative difference {self.largest:.2g}"
        )


def read(path: Path) -> dict[str, Any]:
    """The lists of entries in a file, by kind."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Unreadable(f"{path} is not a file of reference values: it is not a JSON object")
    kinds = {kind: value for kind, value in document.items() if not isinstance(value, str)}
    if not kinds:
        raise Unreadable(f"{path} is not a file of reference values: it has no lists of entries")
    return kinds


def check(kind: str, entries: Any) -> Verdict:
    """Compare all entries of one kind."""
    from vector_checks import KINDS  # noqa: PLC0415 - needs numpy, which may not be installed

    verdict = Verdict(kind)
    if kind not in KINDS:
        verdict.faults.append(f"unknown kind {kind!r}; known are {', '.join(sorted(KINDS))}")
    elif not isinstance(entries, list) or not entries:
        verdict.faults.append(f"{kind} is not a list of entries")
    else:
        for number, fields in enumerate(entries):
            verdict.faults += (f"{kind}[{number}]: {fault}" for fault in _one(verdict, fields))
    return verdict


def _one(verdict: Verdict, fields: Any) -> Iterator[str]:
    """Compare one entry; what is wrong with it."""
    from vector_checks import KINDS, Entry  # noqa: PLC0415

    verdict.entries += 1
    try:
        entry = Entry(fields)
        for compared in KINDS[verdict.kind](entry):
            verdict.numbers += 1
            verdict.largest = max(verdict.largest, compared.difference)
            if not compared.difference <= LARGEST:
                yield f"{compared.name} is {compared.got!r}, the reference says {compared.wanted!r}"
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        yield f"cannot be checked: {error}"
    else:
        unseen = sorted(entry.unseen())
        if unseen:
            yield f"unknown fields {', '.join(unseen)}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.pass_context
def main(ctx: click.Context, files: tuple[Path, ...]) -> None:
    """Compare the code with files of reference values.

    Example: python scripts/check_vectors.py protocol_spec/vectors/statistics.json
    """
    good = True
    for path in files:
        try:
            kinds = read(path)
            click.echo(str(path))
            verdicts = [check(kind, entries) for kind, entries in kinds.items()]
        except Unreadable as error:
            click.echo(f"error: {error}. Nothing in it was checked.", err=True)
            good = False
        except ModuleNotFoundError as missing:
            click.echo(
                f"error: this command needs {missing.name}, which is not installed; nothing was "
                f"checked. Run: {install_command('collector')}",
                err=True,
            )
            ctx.exit(2)
        else:
            good = _print(verdicts) and good
    ctx.exit(0 if good else 1)


def _print(verdicts: list[Verdict]) -> bool:
    """Print the verdicts; whether all of them are good."""
    for verdict in verdicts:
        click.echo(verdict.line())
        for fault in verdict.faults[:5]:
            click.echo(f"    {fault}", err=True)
        if len(verdict.faults) > 5:
            click.echo(f"    … and {len(verdict.faults) - 5} more", err=True)
    return all(verdict.good for verdict in verdicts)


if __name__ == "__main__":
    main()
