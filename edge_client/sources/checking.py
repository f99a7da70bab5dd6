"""Whether sources can be read at all, without reading what they say (P1).

What depends on the configuration and on what is installed is told: no source, a wrong option, a
program or file that is not there. Whether a source that is there gives a usable value is as private
as the value; only `doctor` tries that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_client.errors import SourceFailure
from edge_client.language import message, say
from edge_client.sources import Source, build
from edge_client.sources.command import CommandSource
from edge_client.sources.json_file import JsonFileSource
from edge_client.sources.machine import FACTS, MachineSource
from protocol_spec import AllomfreeError, Attribute
from protocol_spec.programs.output import quoted, shown


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An attribute without a source that can be read: why, and lines for the configuration."""

    attribute: str
    problem: str
    lines: str = ""


def unreadable(attributes: Sequence[Attribute], tables: Mapping[str, Any]) -> Iterator[Unreadable]:
    """Those of the attributes that could not be answered for; the values do not matter."""
    for attribute in attributes:
        name = attribute.name
        if name not in tables:
            yield Unreadable(name, say("there is no source for it"), example(attribute))
        elif why := _problem(name, tables[name]):
            yield Unreadable(name, why)


def example(attribute: Attribute) -> str:
    """A table to add. Left as it is, it counts as an answer that is none of those offered."""
    table = f"[sources.{attribute.name}]"
    if attribute.name in FACTS:
        return f'{table}\nkind = "machine"\nfact = "{attribute.name}"'
    if attribute.edges is not None:
        prints = say("a program that prints the number")
        return f'{table}\nkind = "command"\ncommand = ["cat", "/path"]  # {prints}'
    values = ", ".join(shown(value, 40) for value in attribute.values[:8])
    more = ", ..." if len(attribute.values) > 8 else ""
    yours = say("yours, one of: {values}", values=values + more)
    return f'{table}\nvalue = "..."  # {yours}'


def _problem(name: str, table: object) -> str:
    if not isinstance(table, Mapping):
        return say("[sources.{name}] must be a table", name=name)
    try:
        source = build(name, table)
    except AllomfreeError as error:
        return str(error)
    return _cannot_be_read(source)


def _cannot_be_read(source: Source) -> str:
    if isinstance(source, CommandSource):
        program = source.command[0]
        missing = message("the program {program} is not found, or must not be run")
        return "" if shutil.which(program) else say(missing, program=quoted(program))
    if isinstance(source, JsonFileSource):
        missing = message("the file {file} is not there, or must not be read")
        there = Path(source.file).is_file() and os.access(source.file, os.R_OK)
        return "" if there else say(missing, file=shown(source.file))
    if isinstance(source, MachineSource):
        return _unknown_fact(source)
    return ""


def _unknown_fact(source: MachineSource) -> str:
    """A fact of the machine is there or not; what it is does not matter."""
    try:
        source.read()
    except SourceFailure:
        return say("this machine does not report its {fact}", fact=source.fact)
    return ""
